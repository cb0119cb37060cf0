"""The manifests for Kubernetes and the recipe of the image say what the launcher understands.

No cluster and no container is here: the launcher explains, by --dry-run, what it would do in each
of them.
"""

import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

ROOT = pathlib.Path(os.environ["TEST_SRCDIR"]) / "syncline"
KUBERNETES = ROOT / "examples/kubernetes"
CONTAINER = ROOT / "examples/container"

INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}


def dry_run(arguments, environment, folder):
    result = subprocess.run(
        [ROOT / "launch/syncline_run", "--dry-run", *arguments],
        env={"PATH": os.environ["PATH"]} | environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def documents(name):
    return {item["kind"]: item for item in yaml.safe_load_all((KUBERNETES / name).read_text())}


def job_of(name):
    found = documents(name)
    if "JobSet" in found:
        jobs = found["JobSet"]["spec"]["replicatedJobs"]
        return jobs[0]["template"]["spec"]
    return found["Job"]["spec"]


# What Kubernetes puts in place of a reference to a field of the pod.
FIELDS = {
    "JOBSET_NAME": "exp",
    "REPLICATED_JOB_NAME": "workers",
    "JOBSET_RESTART_ATTEMPT": "0",
    "SYNCLINE_RDZV_ID": "7c1fdc7a-6ab5-4b93-a6a5-000000000000",
}


def pod_environment(container, host, index, secret):
    environment = {}
    for variable in container["env"]:
        environment[variable["name"]] = variable.get("value") or FIELDS[variable["name"]]
    assert environment["SYNCLINE_SECRET_FILE"].startswith(container["volumeMounts"][0]["mountPath"])
    pod = {"HOSTNAME": f"{host}-{index}", "JOB_COMPLETION_INDEX": str(index)}
    return environment | pod | {"SYNCLINE_SECRET_FILE": str(secret)}


@pytest.mark.parametrize(
    ("manifest", "host", "meeting"),
    [
        ("indexed-job.yaml", "train", "train-0.train"),
        ("jobset.yaml", "exp-workers-0", "exp-workers-0-0.exp"),
    ],
)
def test_the_pods_of_a_manifest_are_the_nodes_of_one_job(tmp_path, manifest, host, meeting):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o400)
    job = job_of(manifest)
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    launcher, *arguments = container["command"]
    assert launcher == "syncline-run"
    for index in (0, job["completions"] - 1):
        environment = pod_environment(container, host, index, secret)
        text = dry_run(arguments, environment, tmp_path)
        assert f"nnodes = {job['completions']} " in text
        assert f"this is node {index}" in text
        assert meeting in text
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    # The launcher gives workers 30 seconds, and must itself have more.
    assert pod["terminationGracePeriodSeconds"] > 30
    # A secret of mode 0400 is readable for another user than root by its group.
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] != 0


def test_the_service_of_the_indexed_job_finds_its_pods():
    found = documents("indexed-job.yaml")
    name = found["Job"]["metadata"]["name"]
    assert found["Service"]["metadata"]["name"] == name
    assert found["Service"]["spec"]["selector"] == {"job-name": name}
    assert found["Service"]["spec"]["clusterIP"] == "None"
    assert found["Job"]["spec"]["template"]["spec"]["subdomain"] == name


def instructions():
    text = (CONTAINER / "Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def test_the_image_starts_the_launcher_as_no_root(tmp_path):
    found = dict(instructions())
    assert {name for name, _ in instructions()} == INSTRUCTIONS
    assert instructions()[0][0] == "FROM"
    assert json.loads(found["ENTRYPOINT"]) == ["syncline-run"]
    dry_run(json.loads(found["CMD"]), {}, tmp_path)
    job = job_of("indexed-job.yaml")
    user = job["template"]["spec"]["securityContext"]["runAsUser"]
    assert found["USER"] == str(user)


def test_the_shell_reads_each_command_of_the_image():
    for name, text in instructions():
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", text], check=True)


def test_the_readme_copies_what_the_image_takes():
    readme = (CONTAINER / "README.md").read_text()
    for name, text in instructions():
        if name == "COPY":
            source = text.split()[0]
            assert re.search(rf"^    cp .*{re.escape(source)}", readme, re.MULTILINE), source
