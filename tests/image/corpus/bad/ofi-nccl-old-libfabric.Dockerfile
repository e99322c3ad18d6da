# finds: efa@3
FROM nvidia/cuda:12.8.1-devel-ubuntu24.04@sha256:1111111111111111111111111111111111111111111111111111111111111111
RUN git clone -b v1.17.1 https://github.com/ofiwg/libfabric/v1.17.1 && git clone https://github.com/aws/aws-ofi-nccl/v1.9.1-aws
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
