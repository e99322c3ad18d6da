# warns: base@2
FROM public.ecr.aws/hpc-cloud/nccl-tests
USER 1000:1000
ENTRYPOINT ["python", "-m", "train"]
