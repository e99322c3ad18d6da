# warns: caches@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN apt-get update && apt-get install -y git
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
