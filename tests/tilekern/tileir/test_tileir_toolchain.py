"""Finding the assembler, and stand-ins for it that are old, hang, crash or are not there."""

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_tileir_examples import vector_add

from tilekern.tileir import (
    _answers,
    _process,
    _toolchain,
    assemble,
    disassemble,
    find_toolchain,
    tileiras_version,
)
from tilekern.tileir._toolchain import TILEIRAS_VARIABLE
from tilekern.tileir.errors import (
    CompilerCrashedError,
    CompilerFailedError,
    CompilerNotFoundError,
    CompilerTimeoutError,
    CompilerTooOldError,
)

ABOUT = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.1, V13.1.80"; exit 0;;
  --list-versions) {list_versions};;
  --help) echo "    =sm_80    -   SM 80"; exit 0;;
esac
"""
ELF = "printf '\\177ELF\\n' > module.cubin; "
CANNOT_LIST = "echo 'Unknown command line argument' >&2; exit 1"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A shell script as the assembler, with files in the places of libnvvm and ptxas."""

    def make(script: str, list_versions: str = "printf '13.1\\n13.2\\n13.3\\n'; exit 0") -> Path:
        for name in ("lib/libnvvm.so.4", "bin/ptxas", "bin/tileiras"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("")
        tool = tmp_path / "bin" / "tileiras"
        tool.write_text(ABOUT.replace("{list_versions}", list_versions) + script)
        tool.chmod(0o755)
        monkeypatch.setenv(TILEIRAS_VARIABLE, str(tool))
        return tool

    return make


def test_wheel_is_found_beside_the_other_packages(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TILEIRAS_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    toolchain = find_toolchain()
    assert toolchain.assembler == os.path.realpath(tools / "tileiras")
    assert toolchain.disassembler == os.path.realpath(tools / "tileirdisasm")
    assert Path(toolchain.libnvvm).is_file()
    assert toolchain.version.startswith("13.")
    assert (13, 3) in toolchain.bytecode_versions
    assert {"sm_80", "sm_90", "sm_100", "sm_120"} <= set(toolchain.architectures)


def test_variable_names_file_or_folder(
    stand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = stand_in("")
    assert find_toolchain().assembler == str(tool)
    monkeypatch.setenv(TILEIRAS_VARIABLE, str(tool.parent))
    assert find_toolchain().assembler == str(tool)
    assert tileiras_version() == "13.1.80"
    assert find_toolchain().architectures == ("sm_80",)


def test_path_is_searched_last(stand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tool = stand_in("")
    monkeypatch.delenv(TILEIRAS_VARIABLE)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", str(tool.parent))
    assert find_toolchain().assembler == str(tool)


def test_replaced_assembler_is_asked_again(stand_in: Callable[..., Path]) -> None:
    stand_in("")
    before = find_toolchain()
    assert before.version == "13.1.80"
    tool = stand_in("# another one\n")
    tool.write_text(tool.read_text().replace("13.1.80", "13.2.99"))
    after = find_toolchain()
    assert after.fingerprint != before.fingerprint
    assert after.version == "13.2.99"


def test_missing_assembler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TILEIRAS_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(CompilerNotFoundError, match='pip install "nvidia-cuda-tileiras>=') as caught:
        assemble(b"", "sm_90")
    assert caught.value.compiler == ""


def test_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TILEIRAS_VARIABLE, "/nowhere/tileiras")
    with pytest.raises(CompilerNotFoundError, match="TILEKERN_TILEIRAS is '/nowhere/tileiras'"):
        find_toolchain()


@pytest.mark.parametrize(
    ("missing", "wheel"), [("lib/libnvvm.so.4", "nvidia-nvvm"), ("bin/ptxas", "nvidia-cuda-nvcc")]
)
def test_missing_companions_are_named(
    missing: str,
    wheel: str,
    stand_in: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in("")
    (tmp_path / missing).unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CompilerNotFoundError, match=rf"{wheel}, install it with: pip install"):
        find_toolchain()


def test_file_that_is_no_program(stand_in: Callable[..., Path]) -> None:
    tool = stand_in("")
    tool.chmod(0o644)
    with pytest.raises(CompilerNotFoundError, match="is not an executable file"):
        find_toolchain()
    tool.write_bytes(b"\x7fELF garbage")
    tool.chmod(0o755)
    with pytest.raises(CompilerNotFoundError, match=r"vector_add: .* cannot be started") as caught:
        assemble(vector_add())
    assert caught.value.compiler_version == "unknown version"


def test_old_assembler(stand_in: Callable[..., Path]) -> None:
    refuse = "echo 'error: unsupported Tile IR bytecode version: 13.3' >&2; exit 3"
    stand_in(refuse, list_versions="printf '13.1\\n13.2\\n'; exit 0")
    with pytest.raises(
        CompilerTooOldError, match=r"bytecode 13\.3, only 13\.1, 13\.2; a newer one"
    ) as caught:
        assemble(vector_add())
    assert caught.value.supported == ((13, 1), (13, 2))
    assert caught.value.compiler_version == "13.1.80"
    assert "unsupported Tile IR bytecode version" in caught.value.log


def test_first_assembler_could_not_list_versions(stand_in: Callable[..., Path]) -> None:
    stand_in("exit 3", list_versions=CANNOT_LIST)
    assert find_toolchain().bytecode_versions == ((13, 1),)
    with pytest.raises(CompilerTooOldError, match=r"only 13\.1"):
        assemble(vector_add())


def test_hanging_assembler_is_killed_with_its_children(stand_in: Callable[..., Path], tmp_path: Path) -> None:
    note = tmp_path / "child"
    stand_in(f"sleep 1000 & echo $! > {note}; echo working >&2; wait")
    with pytest.raises(CompilerTimeoutError, match=r"vector_add: .* within 0\.5 s") as caught:
        assemble(vector_add(), timeout_s=0.5)
    assert caught.value.log == "working"
    assert not is_running(int(note.read_text()))


def test_assembler_that_prints_without_end(
    stand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_process, "MOST_OUTPUT", 1000)
    stand_in("exec yes garbage >&2")
    with pytest.raises(CompilerTimeoutError) as caught:
        assemble(vector_add(), timeout_s=0.5)
    assert 900 < len(caught.value.log) <= 1000


WHERE = 'for last in "$@"; do :; done; '


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (': > "$last"', "left 0 bytes that are no cubin"),
        ('echo garbage > "$last"', "left 8 bytes that are no cubin"),
        ('rm -f "$last"; mkfifo "$last"', "left no cubin: it is no ordinary file"),
        ('rm -f "$last"', "left no cubin"),
        ("exit 3", "gave up with exit code 3"),
    ],
)
def test_assembler_that_leaves_no_cubin(script: str, message: str, stand_in: Callable[..., Path]) -> None:
    stand_in(WHERE + script)
    with pytest.raises(CompilerFailedError, match=message):
        assemble(vector_add())


def is_running(process: int) -> bool:
    """Whether it exists and is no zombie waiting for its new parent to notice."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("script", "name"), [("kill -SEGV $$", "SIGSEGV"), ("exit 134", "SIGABRT")])
def test_crashing_assembler(script: str, name: str, stand_in: Callable[..., Path]) -> None:
    stand_in(script)
    with pytest.raises(CompilerCrashedError, match=f"was ended by {name}"):
        assemble(vector_add())


def test_assembler_that_gives_no_reason(stand_in: Callable[..., Path]) -> None:
    stand_in("exit 5")
    with pytest.raises(CompilerFailedError, match="gave up with exit code 5 and said nothing") as caught:
        assemble(vector_add())
    assert caught.value.exit_code == 5
    stand_in("exit 0")
    with pytest.raises(CompilerFailedError, match="left no cubin"):
        assemble(vector_add())


def test_output_and_options_reach_their_places(stand_in: Callable[..., Path]) -> None:
    stand_in(ELF + 'echo "$*" >> module.cubin; echo "$TMPDIR" >> module.cubin; pwd >> module.cubin')
    cubin = assemble(vector_add(), "sm_100", opt_level=1, line_info=True).cubin
    options, temporary, folder = cubin.decode().splitlines()[1:]
    assert options == "--gpu-name=sm_100 --opt-level=1 --lineinfo module.tileir -o module.cubin"
    assert temporary == folder
    assert not Path(folder).exists()


def test_warnings_do_not_fail_a_compilation(stand_in: Callable[..., Path]) -> None:
    stand_in("echo 'warning[]: High register usage' >&2; echo 'and more' >&2; " + ELF)
    assembly = assemble(vector_add())
    assert assembly.cubin == b"\x7fELF\n"
    assert [(warning.kind, warning.title) for warning in assembly.warnings] == [
        ("warning", "High register usage")
    ]
    assert assembly.log.endswith("and more\n")


def test_folder_of_a_run_is_private(stand_in: Callable[..., Path]) -> None:
    stand_in(ELF + "stat -c %a . >> module.cubin")
    assert stat.S_IMODE(int(assemble(vector_add()).cubin.split()[1], 8)) == 0o700


def test_missing_disassembler(stand_in: Callable[..., Path]) -> None:
    stand_in("")
    with pytest.raises(CompilerNotFoundError, match="no tileirdisasm beside"):
        disassemble(vector_add())


def test_no_room_for_a_temporary_folder(
    stand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    stand_in("")
    find_toolchain().version  # noqa: B018 - asked while there is room
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(CompilerFailedError, match="no temporary folder could be made"):
        assemble(vector_add())


class Store(dict[bytes, bytes]):
    """Keeps answers, as the disk cache does."""

    def put(self, key: bytes, value: bytes, metadata: object = None) -> bool:
        self[key] = value
        return True


def test_answers_are_kept_between_processes(
    stand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked once per binary: another process reads them, a replaced binary is asked again."""
    store = Store()
    tool = stand_in("exit 0")
    assert find_toolchain(store).version == "13.1.80"
    assert len(store) == 1
    asked: list[object] = []
    original = _answers.run_tool

    def counting(command: list[str], folder: Path, timeout_s: float) -> object:
        asked.append(command)
        return original(command, folder, timeout_s)

    monkeypatch.setattr(_answers, "run_tool", counting)
    monkeypatch.setattr(_toolchain, "_answers", {})
    toolchain = find_toolchain(store)
    assert (toolchain.version, toolchain.architectures) == ("13.1.80", ("sm_80",))
    assert toolchain.bytecode_versions == ((13, 1), (13, 2), (13, 3))
    assert asked == []
    tool.write_text(tool.read_text().replace("V13.1.80", "V13.1.81 "))
    assert find_toolchain(store).version == "13.1.81"
    assert len(asked) == 3
    for key in store:
        store[key] = b"not an answer"
    monkeypatch.setattr(_toolchain, "_answers", {})
    assert find_toolchain(store).version == "13.1.81"
    assert len(asked) == 6
