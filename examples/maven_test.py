"""The project of examples/maven, built by Debian's Maven and its plug-ins, without network."""

import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"
MAVEN = ROOT.parent / "maven/usr/share"
REPOSITORY = ROOT / "java/maven"

SETTINGS = f"""
<settings>
  <localRepository>%s</localRepository>
  <mirrors>
    <mirror>
      <id>debian</id>
      <mirrorOf>*,!syncline</mirrorOf>
      <url>file://{MAVEN}/maven-repo</url>
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


def test_a_module_of_maven_uses_the_artifact(tmp_path):
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/maven", project)
    settings = tmp_path / "settings.xml"
    settings.write_text(SETTINGS % (tmp_path / "local"))
    # What the machine's user says to Maven is no part of this.
    env = dict(os.environ, HOME=str(tmp_path), MAVEN_SKIP_RC="1")
    env["MAVEN_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # Half the time.
    maven = [MAVEN / "maven/bin/mvn", "-B", "-s", settings]
    run(*maven, f"-Dsyncline.repository=file://{REPOSITORY}", "compile", cwd=project, env=env)
    (jar,) = (tmp_path / "local/io/syncline").rglob("syncline-?.?.?.jar")
    classes = project / "target/classes"
    assert (classes / "module-info.class").exists()
    launcher = [ROOT / "launch/syncline_run", "--standalone", "--nproc-per-node=2", "--no-python"]
    output = run(
        *launcher, "java", "-p", f"{jar}:{classes}", "-m", "hello/hello.Hello", cwd=tmp_path
    )
    assert sorted(re.findall(r"rank \d of \d: \d", output)) == ["rank 0 of 2: 1", "rank 1 of 2: 1"]
