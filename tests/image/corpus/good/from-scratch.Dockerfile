FROM scratch
COPY train.py /
USER 1000
