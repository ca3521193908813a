"""Processes: fork after use, process pools by fork and by spawn (case C38)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")

PROGRAM = """
import asyncio, multiprocessing, os, sys, time
import cuda_async as ca

def job(value):
    async def main():
        return float((await ca.full(4, value).to_host()).sum())
    return asyncio.run(main())

def tried(value):
    began = time.monotonic()
    try:
        return str(job(value))
    except ca.ContextError as error:
        assert time.monotonic() - began < 5
        return "spawn" if "fork()" in str(error) and '"spawn"' in str(error) else str(error)

if __name__ == "__main__":
    DEVICE
    with ca.use_device(device):
        print(job(1.0))
        context = multiprocessing.get_context("HOW")
        with context.Pool(2) as pool:
            print(*sorted(set(pool.map(tried, [2.0] * 4))))
        print(job(3.0))
"""


def run(how, device, tmp_path):
    script = tmp_path / "pool.py"
    script.write_text(
        textwrap.dedent(PROGRAM).replace("HOW", how).replace("DEVICE", f'device = ca.Device("{device}")')
    )
    environment = {**os.environ, "CUDA_ASYNC_DRIVER": str(device).partition(":")[0]}
    # Python warns of fork() where there are threads, as it should.
    return run_script(script, "-W", "error", "-W", "ignore::DeprecationWarning", env=environment)


def run_script(script, *options, env=None):
    return subprocess.run(
        [sys.executable, *options, str(script)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(("how", "children"), [("fork", "spawn"), ("spawn", "8.0")])
def test_process_pool(device, how, children, tmp_path):
    """Case C38: forked workers are told of spawn at once, spawned ones work, and the parent goes on."""
    done = run(how, device, tmp_path)
    assert done.stdout.split() == ["4.0", children, "12.0"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


def test_forked_child_is_refused_every_kind_of_use(device, tmp_path):
    """Case C38: operations, futures, tensors, streams and other devices of the parent, each within the limit."""
    script = tmp_path / "uses.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, os, sys
        import cuda_async as ca
        with ca.use_device("{device}") as device:
            tensor, stream = ca.zeros(4).sync(), device.create_stream()
            host = ca.Device("host:0")
            ca.zeros(4).then(ca.copy).sync()
            graph = ca.fill(tensor, 1.0).graph().sync()
            async def awaits():
                await ca.zeros(4)
            uses = [
                lambda: ca.zeros(4).sync(), lambda: ca.zeros(4).start().sync(), lambda: tensor.to_host().sync(),
                lambda: stream.record(), lambda: stream.synchronize(), lambda: device.create_stream(),
                lambda: graph.launch().sync(), lambda: asyncio.run(awaits()), lambda: ca.copy(tensor).sync_on(stream),
            ]
            child = os.fork()
            if child == 0:
                for number, use in enumerate(uses):
                    try:
                        use()
                    except ca.ContextError as error:
                        print(number, "spawn" in str(error), flush=True)
                del tensor, stream, graph
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(float(tensor.to_host().sync().sum()))
        """)
    )
    done = run_script(script, "-W", "ignore::DeprecationWarning")
    assert done.stdout.splitlines() == [*(f"{n} True" for n in range(9)), "0.0"], done.stderr


def test_what_was_begun_before_the_fork(device, tmp_path):
    """Case C38: a future of a shared operation that the parent works on, and closing what is the parent's."""
    script = tmp_path / "begun.py"
    script.write_text(
        textwrap.dedent(f"""
        import asyncio, os, threading
        import cuda_async as ca
        release, entered = threading.Event(), threading.Event()
        class Slow(ca.DeviceOp):
            def prepare(self, ctx):
                entered.set()
                release.wait(30)
            def execute(self, ctx):
                return 5
        async def awaits(thing):
            return await thing
        with ca.use_device("{device}") as device:
            ca.zeros(4).sync()
            stream = device.create_stream()
            shared = ca.zeros(4).then(lambda _: Slow()).shared()
            future = shared.map(lambda x: x + 1).start()
            entered.wait(30)
            child = os.fork()
            if child == 0:
                uses = [future.sync, lambda: asyncio.run(awaits(future))]
                for number, use in enumerate(uses):
                    try:
                        use()
                    except ca.ContextError as error:
                        print(number, "spawn" in str(error), flush=True)
                print(future.state, flush=True)
                stream.close()
                device.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            release.set()
            print(future.sync(), shared.sync())
        """)
    )
    done = run_script(script, "-W", "ignore::DeprecationWarning")
    assert done.stdout.splitlines() == ["0 True", "1 True", "enqueueing", "6 5"], done.stderr
