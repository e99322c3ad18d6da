# finds: platform@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
ADD https://example.com/kubectl-1.31.0-linux-arm64.tar.gz /opt/
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
