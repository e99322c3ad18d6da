FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
ENV TOKENIZERS_PARALLELISM=false MAX_TOKENS=4096 HF_TOKEN_PATH=/run/secrets/hf
RUN --mount=type=secret,id=hf_token HF_TOKEN=$(cat /run/secrets/hf_token) python -c 'pass'
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
