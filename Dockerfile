# One image for the operator and the reference trainer: pinned dependencies and the package, nothing to build with.
# Run as it is, it trains: it is the default image of jobs that name none.
FROM python:3.13-slim AS build
WORKDIR /build
COPY requirements.txt ./
RUN python -m venv /opt/holdfast && /opt/holdfast/bin/pip install --no-cache-dir --require-hashes -r requirements.txt
COPY dist/*.whl ./
RUN /opt/holdfast/bin/pip install --no-cache-dir --no-deps ./*.whl

FROM python:3.13-slim
COPY --from=build /opt/holdfast /opt/holdfast
USER 65532:65532
ENV PYTHONUNBUFFERED=1 PATH=/opt/holdfast/bin:$PATH
CMD ["python", "-m", "holdfast.trainer"]
