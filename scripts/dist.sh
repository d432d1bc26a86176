#!/usr/bin/env bash
# Builds the wheel and the sdist into dist/, and checks them: their metadata and the page that the README becomes, and the wheel installed
# into an environment with nothing else in it, and into one as the image for Kubernetes has it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

clone=$PWD python=$PWD/.venv/bin/python
uv=("$python" -m uv)
rm -rf dist
"$python" -m hatchling build --directory dist
"${uv[@]}" tool run --quiet --with 'readme-renderer[md]==46.0' twine@7.0.0 check --strict dist/*.whl dist/*.tar.gz

empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
"${uv[@]}" venv --quiet --python "$python" "$empty/venv"
"${uv[@]}" pip install --quiet --python "$empty/venv/bin/python" -c constraints.txt dist/*.whl
cd "$empty" # nothing is imported from the clone
venv/bin/spark-jobs --help >/dev/null
venv/bin/python -P - <<'END'
from importlib.metadata import entry_points, version
from importlib.resources import files

name = "airflow-provider-spark-jobs"
(point,) = entry_points(group="apache_airflow_provider")
info = point.load()()
assert (info["package-name"], info["versions"]) == (name, [version(name)]), info
for package in ("spark_jobs", "airflow_provider"):
    assert files(package).joinpath("py.typed").is_file(), package
assert files("airflow_provider").joinpath("pages/templates/style.css").is_file()
print(f"{name} {version(name)} installs by itself, and its provider info is right.")
END

# The packages that the guide's Dockerfile installs, as it installs them: without constraints.txt. The driver's file starts with them, and
# finds Spark, Delta and the client of S3.
page=$clone/docs/how-to/stores-on-yarn-and-kubernetes.md
install=$(grep -F 'dist/*.whl)[' "$page")
main=$(sed -nE 's|.*"spark_main": "local:///opt/venv/(.*)".*|\1|p' "$page")
extras=$(grep -oE '\[[a-z0-9,]+\]' <<<"$install")
pins=$(grep -oE '[a-z0-9-]+==[0-9.]+' <<<"$install")
"${uv[@]}" venv --quiet --python "$python" image
# shellcheck disable=SC2086  # the pins are words
"${uv[@]}" pip install --quiet --python image/bin/python "$(ls "$clone"/dist/*.whl)$extras" $pins
image/bin/python -P image/${main/python3.11/python*} --help >/dev/null
image/bin/python -P -c "import delta, obstore, pyspark; print(f'The image has pyspark {pyspark.__version__}.')"
