FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN --mount=type=cache,target=/var/cache/apt --mount=type=cache,target=/var/lib/apt apt-get update && apt-get install -y git
RUN --mount=type=cache,target=/var/cache/pip --mount=type=bind,source=requirements.lock,target=/r.lock pip install -r /r.lock
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
