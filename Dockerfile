# The operator's image: the pinned dependencies and the package, nothing to build with.
FROM python:3.13-slim AS build
WORKDIR /build
COPY requirements.txt ./
RUN python -m venv /opt/holdfast && /opt/holdfast/bin/pip install --no-cache-dir --require-hashes -r requirements.txt
COPY dist/*.whl ./
RUN /opt/holdfast/bin/pip install --no-cache-dir --no-deps ./*.whl

FROM python:3.13-slim
COPY --from=build /opt/holdfast /opt/holdfast
USER 65532:65532
ENV PYTHONUNBUFFERED=1
ENTRYPOINT ["/opt/holdfast/bin/holdfast"]
