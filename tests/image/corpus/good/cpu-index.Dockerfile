FROM nvidia/cuda:11.8.0-base-ubuntu22.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir --index-url https://wheels.example/whl/cpu torch==2.9.1
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
