# warns: base@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
COPY --from=ghcr.io/astral-sh/uv:latest /uv /bin/uv
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
