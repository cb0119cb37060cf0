"""The project of examples/maven, built by Debian's Maven and its plug-ins, without network."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"
PLUGINS = pathlib.Path("/usr/share/maven-repo")
REPOSITORY = ROOT / "java/maven"

SETTINGS = f"""
<settings>
  <localRepository>%s</localRepository>
  <mirrors>
    <mirror>
      <id>debian</id>
      <mirrorOf>*,!syncline</mirrorOf>
      <url>file://{PLUGINS}</url>
    </mirror>
  </mirrors>
</settings>
"""


def run(*command, **kwargs):
    result = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        **kwargs,
    )
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


@pytest.mark.skipif(not shutil.which("mvn"), reason="Maven is not installed")
def test_a_module_of_maven_uses_the_artifact(tmp_path):
    for plugin in ("compiler", "resources"):
        if not (PLUGINS / f"org/apache/maven/plugins/maven-{plugin}-plugin").exists():
            pytest.skip(f"libmaven-{plugin}-plugin-java is not installed")
    if not (PLUGINS / "org/junit/junit-bom").exists():
        pytest.skip("junit5 is not installed, whose pom that of the compiler's plug-in imports")
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/maven", project)
    settings = tmp_path / "settings.xml"
    settings.write_text(SETTINGS % (tmp_path / "local"))
    maven = ["mvn", "-B", "-s", settings, f"-Dsyncline.repository=file://{REPOSITORY}"]
    run(*maven, "compile", cwd=project)
    (jar,) = (tmp_path / "local/io/syncline").rglob("syncline-?.?.?.jar")
    classes = project / "target/classes"
    assert (classes / "module-info.class").exists()
    launcher = [ROOT / "launch/syncline_run", "--standalone", "--nproc-per-node=2", "--no-python"]
    output = run(
        *launcher, "java", "-p", f"{jar}:{classes}", "-m", "hello/hello.Hello", cwd=tmp_path
    )
    assert sorted(re.findall(r"rank \d of \d: \d", output)) == ["rank 0 of 2: 1", "rank 1 of 2: 1"]
