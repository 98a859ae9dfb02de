"""The few objects that the control plane's own tests put into it."""

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept}\n"


def indexed_job(name: str, completions: int = 3, **script: str) -> str:
    """A Job whose pods behave as `script` says: run_for="1s" is the annotation kwok.holdfast.dev/run-for."""
    return f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: {name}}}
spec:
  completionMode: Indexed
  completions: {completions}
  parallelism: {completions}
  backoffLimit: 0
  template:
    metadata: {{annotations: {{{annotations(script)}}}}}
    spec:
      restartPolicy: Never
      containers: [{{name: trainer, image: trainer}}]
"""


def pod(name: str, *, spec: str = "", **script: str) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {{{annotations(script)}}}}}
spec:
  restartPolicy: Never
  initContainers:
  - {{name: prepare, image: prepare}}
  - {{name: sidecar, image: sidecar, restartPolicy: Always}}
  containers: [{{name: trainer, image: trainer}}]
{spec}
"""


def annotations(script: dict[str, str]) -> str:
    return ", ".join(f"kwok.holdfast.dev/{key.replace('_', '-')}: '{value}'" for key, value in script.items())
