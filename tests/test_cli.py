"""The command line: help, wrong arguments, exit codes."""

import json
import re
import subprocess
import sys

import pytest

from depict import __version__, cli
from depict.analysis.runner import ANALYSES
from depict.cli import COMMANDS, main
from depict.data import DATASETS
from depict.decoders import DECODERS


def printed_help(capsys, monkeypatch, *command: str, columns: int = 80) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def box_of_wrong_arguments(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([*arguments])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert "class '" not in error
    return error


def imported_by(*arguments: str, without: tuple[str, ...] = ()) -> tuple[set[str], str]:
    """The modules that a command imports, in a process of its own where some are missing, and what it prints."""
    code = f"""
import sys
sys.modules |= dict.fromkeys({without})
from depict.cli import main
main({list(arguments)})
print(*(name for name, module in sys.modules.items() if module), file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stderr.split()), result.stdout


def test_the_overview_lists_every_command_and_imports_nothing_heavy():
    modules, text = imported_by("--help")
    assert not {"torch", "timm", "torchvision", "numpy", "tyro"} & modules
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.slow
def test_costs_are_printed_without_timm_torchvision_or_the_compiler():
    modules, text = imported_by("info", "--json", without=("transformers",))  # with it, MaskFormer's row is computed
    assert not {"timm", "torchvision", "transformers", "torch._dynamo", "accelerate"} & modules
    rows = json.loads(text)["rows"]
    small = next(row for row in rows if row["decoder"] == "DEPICT-SA" and row["backbone"] == "ViT-S")
    assert (small["parameters"], small["multiply_adds"]) == (406575, 3361132320)


@pytest.mark.parametrize("command", [*COMMANDS, "study perturbation"])
def test_help_has_an_example_and_no_python_types_and_fits_80_columns(command, capsys, monkeypatch):
    text = printed_help(capsys, monkeypatch, *command.split())
    assert text.startswith(f"usage: depict {command} [-h]")
    assert f"Examples:\n  depict {command}" in text
    for wrong in ("NoneType", "{None}", "None)", "[STR", "[INT [", "(default: )"):
        assert wrong not in text
    _, *lines = text.splitlines()  # tyro does not wrap the usage
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("command", "positionals"),
    [
        ("segment", "RUN PICTURES..."),
        ("evaluate", "RUN"),
        ("analyze", "RUN..."),
        ("study", "STUDY"),
        ("prepare", "DATASET"),
        ("attention", "RUN IMAGE"),
        ("import", "CHECKPOINT RUN"),
        ("export", "RUN FILE.onnx"),
        ("push", "RUN USER/NAME"),
    ],
)
def test_the_usage_names_the_positional_arguments(command, positionals, capsys, monkeypatch):
    usage = printed_help(capsys, monkeypatch, command).partition("\n")[0]
    assert f"] {positionals} " in f"{usage} "


@pytest.mark.parametrize(
    ("command", "names"), [("train", DECODERS), ("train", DATASETS), ("check", DATASETS), ("analyze", ANALYSES)]
)
def test_the_help_lists_every_decoder_data_set_and_analysis(command, names, capsys, monkeypatch):
    text = printed_help(capsys, monkeypatch, command)
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"depict {__version__}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inof"], "depict: unknown command 'inof'. Did you mean 'info'?"),
        (["info", "--decoder", "depict_saa"], "depict: unknown decoder 'depict_saa'. Did you mean 'depict_sa'?"),
        (["info", "--decoder", "depict_sa", "--encoder", "vit_tny_patch16_224"], "depict: unknown encoder"),
        (["info", "--decoder", "linear", "--decoder.layers", "2"], "depict: unknown option for the decoder 'linear'"),
        (
            ["info", "--decoder", "depict_sa", "--image-size", "0"],
            "depict: --image-size must be at least 1, not 0.",
        ),
        (["study", "pertubation"], "depict: unknown study 'pertubation'. Did you mean 'perturbation'?"),
        (["segment", "run", "--out", "out"], "depict: no pictures given"),
        (["analyze", "--out", "out"], "depict: no runs were given"),
    ],
)
def test_wrong_values_end_with_one_line_and_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--out", "run", "--epochs", "abc"], "--epochs: expected an integer, not 'abc'."),
        (["train", "--out", "run", "--batch", "1.5"], "--batch: expected an integer, not '1.5'."),
        (["train", "--out", "run", "--lr", "fast"], "--lr: expected a number, not 'fast'."),
        (["train", "--out", "run", "--image-size", "big"], "--image-size: cannot use 'big'."),
        (["train", "--out", "run", "--data.scale-range", "1", "b"], "--data.scale-range: expected a number, not 'b'."),
        (["train", "--out", "run", "--loss", "l2"], "invalid choice 'l2' for argument '--loss'"),
        (["study", "decoders", "--out", "study", "--seeds", "1", "b"], "--seeds: expected an integer, not 'b'."),
        (["segment", "run", "a.png", "--out", "out", "--workers", "two"], "--workers: expected an integer, not 'two'."),
        (["train"], "--out RUN"),
        (["segment"], "RUN"),
        (["info", "--decodr", "depict_sa"], "--decoder, --decoder.name NAME"),
        (["prepare", "imagenet", "--root", "."], "invalid choice 'imagenet'"),
    ],
)
def test_wrong_flags_are_named_in_a_box(arguments, message, capsys):
    assert message in box_of_wrong_arguments(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "--out", "FILE"],
        ["train", "--data", "scenes", "--out", "FILE"],
        ["segment", "run", "a.png", "--out", "FILE"],
        ["evaluate", "run", "--save", "FILE"],
        ["analyze", "run", "--out", "FILE"],
        ["study", "decoders", "--data", "scenes", "--out", "FILE"],
        ["study", "perturbation", "run", "--out", "FILE"],
        ["prepare", "camvid", "--root", "FILE"],
    ],
)
def test_a_file_where_a_folder_is_written_is_refused_in_one_line(arguments, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("kept")
    assert main([str(file) if word == "FILE" else word for word in arguments]) == 2
    error = capsys.readouterr().err
    assert error == f"depict: {arguments[-2]} '{file}' is a file: name a folder.\n"
    assert file.read_text() == "kept"


@pytest.mark.parametrize(
    ("arguments", "name", "suffix"),
    [
        (["export", "run", "OUT"], "FILE", ".onnx"),
        (["pca", "photo.jpg", "--out", "OUT"], "--out", ".png"),
        (["attention", "run", "photo.jpg", "--out", "OUT"], "--out", ".png"),
        (["check", "--data", "scenes", "--show", "OUT"], "--show", ".png"),
    ],
)
def test_a_folder_or_another_suffix_where_a_file_is_written_is_refused_in_one_line(
    arguments, name, suffix, tmp_path, capsys
):
    other = tmp_path / "other.txt"
    for out, reason in ((tmp_path, "is a folder: name a file in it."), (other, f"must end in {suffix}.")):
        assert main([str(out) if word == "OUT" else word for word in arguments]) == 2
        assert capsys.readouterr().err == f"depict: {name} '{out}' {reason}\n"
    assert not other.exists()


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.yaml"), 2, "'a.yaml': No such file or directory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 1 GiB"), 2, "out of memory: use smaller images"),
        (MemoryError(), 2, "out of memory: use smaller images"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("stopped; run it again to resume"), 130, "stopped; run it again to resume"),
    ],
)
def test_errors_of_the_machine_are_one_line(error, code, message, capsys, monkeypatch):
    def fail(arguments):
        raise error

    monkeypatch.setattr(cli, "_dispatch", fail)
    assert main(["train"]) == code
    line = capsys.readouterr().err
    assert line.startswith(f"depict: {message}")
    assert line.count("\n") == 1


def test_errors_of_the_program_keep_their_traceback(monkeypatch):
    def fail(arguments):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        main(["train"])


def test_one_model_is_described_with_exact_integers(capsys):
    main(["info", "--decoder", "depict_sa", "--encoder", "vit_small_patch16_384", "--classes", "150", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert (facts["decoder_parameters"], facts["decoder_multiply_adds"]) == (406575, 3361132320)
    assert facts["grid"] == [32, 32]


@pytest.mark.slow
def test_a_closed_pipe_causes_no_traceback():
    result = subprocess.run(
        f"{sys.executable} -m depict.cli info | head -n 1", shell=True, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in result.stderr
