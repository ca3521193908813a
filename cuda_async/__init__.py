"""asyncio-native GPU execution."""
