# finds: secrets@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN huggingface-cli login --token hf_AbCdEfGhIjKlMnOpQrStUvWx
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
