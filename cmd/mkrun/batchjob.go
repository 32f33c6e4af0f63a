package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mkrun/mkrun/internal/hosts"
	"github.com/mkrun/mkrun/internal/launch"
)

// tellUnused says that a job of a batch system has more than what is used without a word about hosts.
func (f *hostFlags) tellUnused() {
	if f.nodesGiven() {
		return
	}
	pool, err := hosts.FromBatch(os.LookupEnv, true)
	if err != nil {
		return // in no such job, or one that says nothing
	}
	slots := 0
	for _, h := range pool {
		slots += max(h.Slots, 1)
	}
	if len(pool) > 1 || slots > 1 && !f.counted() {
		fmt.Fprintf(f.stderr(), "mkrun: only this host is used; the job of the batch system that this is in has hosts: %d, slots: %d; --batch takes them\n", len(pool), slots)
	}
}

// slurms tells which of some hosts are no nodes of the Slurm job that this is in. Nothing is known where this is in none, or
// where something asks for ssh.
func (f *hostFlags) slurms(list []hosts.Host) (strangers []string, known bool) {
	nodes, err := hosts.FromSlurm(os.Getenv("SLURM_JOB_NODELIST"), "")
	_, slurm := os.LookupEnv("SLURM_JOB_ID")
	if err != nil || !slurm || f.copySelf || f.head != "here" || slices.ContainsFunc(list, func(h hosts.Host) bool { return h.User != "" }) {
		return nil, false
	}
	names := map[string]bool{}
	for _, n := range nodes {
		names[n.Name] = true
	}
	for _, h := range list {
		if !names[h.Name] {
			strangers = append(strangers, h.Name)
		}
	}
	return strangers, true
}

// tellStrangers says that hosts are reached over ssh since not all of them are nodes of the Slurm job that this is in.
func (f *hostFlags) tellStrangers(list []hosts.Host, placed []launch.Host) {
	strangers, known := f.slurms(list)
	if !known || len(strangers) == 0 || !slices.ContainsFunc(placed, func(h launch.Host) bool { return h.By == launch.ReachSSH }) {
		return
	}
	const most = 5
	names, are := strings.Join(strangers[:min(most, len(strangers))], ", "), "is no node"
	if len(strangers) > most {
		names += fmt.Sprintf(" and %d more", len(strangers)-most)
	}
	if len(strangers) > 1 {
		are = "are no nodes"
	}
	fmt.Fprintf(f.stderr(), "mkrun: %s %s of this Slurm job (%s): agents are started over ssh, not by srun, on all hosts\n", names, are, os.Getenv("SLURM_JOB_NODELIST"))
}
