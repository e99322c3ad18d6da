// The first process of a pod: holds its namespaces until it is told to end, and collects orphans.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	orphans := make(chan os.Signal, 16)
	signal.Notify(orphans, syscall.SIGCHLD)
	for {
		select {
		case <-ended:
			return
		case <-orphans:
			for {
				if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
					break
				}
			}
		}
	}
}
