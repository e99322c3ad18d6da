# finds: python@2
FROM python:3.13-slim@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.4.1
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
