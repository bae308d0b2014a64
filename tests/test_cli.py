"""The command line as a user meets it, in its own process."""

import json
import subprocess
import sys

import pytest

from depict import __version__
from depict.cli import COMMANDS, main


def depict(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "depict.cli", *arguments], capture_output=True, text=True, timeout=120, **options
    )


def test_help_lists_every_command_and_imports_nothing_heavy():
    code = (
        "import sys; from depict.cli import main; main(['--help']); "
        "heavy = {'torch', 'timm', 'torchvision', 'numpy', 'tyro'} & set(sys.modules); "
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in COMMANDS)


def test_costs_are_told_without_timm_torchvision_or_the_compiler():
    code = (
        "import sys; from depict.cli import main; main(['info', '--json']); "
        "heavy = {'timm', 'torchvision', 'transformers', 'torch._dynamo', 'accelerate'} & set(sys.modules); "
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    small = next(row for row in rows if row["decoder"] == "DEPICT-SA" and row["backbone"] == "ViT-S")
    assert (small["parameters"], small["multiply_adds"]) == (406575, 3361132320)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    assert stopped.value.code == 0
    assert f"usage: depict {name}" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"depict {__version__}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inof"], "depict: unknown command 'inof'. Did you mean 'info'?"),
        (["info", "--decoder", "depict_as"], "depict: unknown decoder 'depict_as'. Did you mean 'depict_sa'?"),
        (["info", "--decoder", "depict_sa", "--encoder", "vit_tny_patch16_224"], "depict: unknown encoder"),
        (["info", "--decoder", "linear", "--decoder.layers", "2"], "depict: unknown option for the decoder 'linear'"),
        (["info", "--decoder", "depict_sa", "--image-size", "0"], "depict: --image-size and --classes must be"),
    ],
)
def test_mistakes_end_with_one_line_and_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_a_wrong_flag_is_answered_with_the_nearest_ones():
    result = depict("info", "--decodr", "depict_sa")
    assert result.returncode == 2
    assert "--decoder" in result.stderr
    assert "Traceback" not in result.stderr


def test_one_model_is_described_with_exact_integers(capsys):
    main(["info", "--decoder", "depict_sa", "--encoder", "vit_small_patch16_384", "--classes", "150", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert (facts["decoder_parameters"], facts["decoder_multiply_adds"]) == (406575, 3361132320)
    assert facts["grid"] == [32, 32]


def test_a_reader_that_stops_reading_causes_no_traceback():
    result = subprocess.run(
        f"{sys.executable} -m depict.cli info | head -n 1", shell=True, capture_output=True, text=True, timeout=120
    )
    assert "Traceback" not in result.stderr
