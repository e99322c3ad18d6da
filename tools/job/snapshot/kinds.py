"""The resources that a snapshot asks the API server for, by kind."""

OPERATOR_IMAGE = "training-operator"  # part of the name of its image
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# Resources of the job's namespace, then of the cluster.
NAMESPACED = {
    "Event": "events",
    "Service": "services",
    "NetworkPolicy": "networkpolicies",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "ResourceQuota": "resourcequotas",
}
GLOBAL = {"Node": "nodes", "StorageClass": "storageclasses", "PersistentVolume": "persistentvolumes"}
KUEUE = {
    "LocalQueue": "localqueues.kueue.x-k8s.io",
    "Workload": "workloads.kueue.x-k8s.io",
    "ClusterQueue": "clusterqueues.kueue.x-k8s.io",
}
# Groups and queues, by the scheduler that uses them.
GANGS = {
    "volcano": {"PodGroup": "podgroups.scheduling.volcano.sh", "Queue": "queues.scheduling.volcano.sh"},
    "kai-scheduler": {"PodGroup": "podgroups.scheduling.run.ai", "Queue": "queues.scheduling.run.ai"},
    "scheduler-plugins-scheduler": {"PodGroup": "podgroups.scheduling.x-k8s.io"},
}
CLAIMS = {
    "ResourceClaim": "resourceclaims.resource.k8s.io",
    "ResourceClaimTemplate": "resourceclaimtemplates.resource.k8s.io",
}
# What says which pods a TrainJob has.
RUNTIMES = {
    "TrainingRuntime": "trainingruntimes.trainer.kubeflow.org",
    "ClusterTrainingRuntime": "clustertrainingruntimes.trainer.kubeflow.org",
}
