# finds: copy@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
COPY ../requirements.txt /app/
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
