# One image for the operator and the reference trainer: pinned dependencies and the package, nothing to build with.
# Run as it is, it trains: it is the default image of jobs that name none.
#
# The digest is the one that several public repositories pin for python:3.13-slim (3.13.15 on Debian 13). The image
# was not pulled when it was written here: compare it with what your registry answers before you rely on it.
ARG BASE=python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
FROM ${BASE} AS build
WORKDIR /build
COPY requirements.txt requirements-build.txt ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements-build.txt \
    && python -m venv --without-pip /opt/holdfast \
    && /opt/build/bin/pip --python /opt/holdfast/bin/python install --no-cache-dir --require-hashes -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/build/bin/hatchling build -t wheel \
    && /opt/build/bin/pip --python /opt/holdfast/bin/python install --no-cache-dir --no-deps dist/*.whl

FROM ${BASE}
# The base's own pip: nothing is installed into a container that runs.
RUN cd "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && rm -rf ensurepip site-packages/pip site-packages/pip-*.dist-info \
    && cd "$(python -c 'import sysconfig; print(sysconfig.get_path("scripts"))')" && rm -f pip pip3 pip3.*
COPY --from=build /opt/holdfast /opt/holdfast
USER 65532:65532
ENV PYTHONUNBUFFERED=1 PATH=/opt/holdfast/bin:$PATH
CMD ["python", "-m", "holdfast.trainer"]
