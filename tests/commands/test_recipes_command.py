"""The recipes that come with the package: listed, copied, and never over another file."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from lightning_tgnn.__main__ import main

ROOT = Path(__file__).parents[2]


def test_recipes_are_listed_and_copied(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["recipes"])
    printed = capsys.readouterr().out
    assert all(path.stem in printed for path in (ROOT / "recipes").glob("*.yaml"))
    for _ in range(2):  # the same once more
        main(["recipes", "quickstart"])
    main(["recipes", "tgn_custom_csv.yaml"])
    names = ("quickstart.yaml", "tgn_custom_csv.yaml", "example_events.csv")
    assert {path.name for path in (tmp_path / "recipes").iterdir()} == set(names)
    for name in names:
        assert (tmp_path / "recipes" / name).read_bytes() == (ROOT / "recipes" / name).read_bytes()
    main(["recipes", "tgn_custom_csv", "--output", "mine"])
    recipe = yaml.safe_load((tmp_path / "mine" / "tgn_custom_csv.yaml").read_text())
    assert Path(recipe["data"]["init_args"]["source"]) == Path("mine/example_events.csv")
    (tmp_path / "recipes" / "quickstart.yaml").write_text("model: {}")
    with pytest.raises(SystemExit, match="must be a new file, for it would be replaced"):
        main(["recipes", "quickstart"])
    with pytest.raises(SystemExit, match=r"did you mean 'quickstart'\?"):
        main(["recipes", "quikstart"])


def test_a_wheel_has_the_recipes(tmp_path):
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    subprocess.run([sys.executable, *build], check=True, timeout=200)
    (wheel,) = tmp_path.glob("*.whl")
    held = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if "/recipes/" in name and "data" in name}
    assert held == {path.name for path in (ROOT / "recipes").iterdir()}
