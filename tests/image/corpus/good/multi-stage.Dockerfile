# syntax=docker/dockerfile:1
ARG BASE=python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
FROM ${BASE} AS build
RUN apt-get update && apt-get install -y git
RUN python -m venv /opt/venv && /opt/venv/bin/pip install --require-hashes -r requirements.lock
FROM ${BASE}
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY train.py /app/
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
