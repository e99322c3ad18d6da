# finds: platform@2
FROM --platform=linux/arm64 python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
