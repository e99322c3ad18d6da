module trainyard.test/cluster/pause

go 1.26.0
