# finds: efa@4
FROM nvidia/cuda:11.8.0-devel-ubuntu22.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN pip install --no-cache-dir torch==2.0.1+cu118
RUN curl -fsSLO https://github.com/aws/aws-ofi-nccl/releases/download/v1.21.1/aws-ofi-nccl-1.21.1.tar.gz
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
