# warns: caches@3
FROM python:3.12-slim-bookworm@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN conda install -y -c conda-forge numpy=2.3.0
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
