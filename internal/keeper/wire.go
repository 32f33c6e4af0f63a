package keeper

import "time"

// controlFD is the keeper's end of the socket that joins it to its agent.
const controlFD = 3

// Agent and keeper are the same binary, so gob's own description of types is all the versioning they need. Unlike
// JSON it carries any bytes in arguments and environment.

type commandKind uint8

const (
	cmdReady  commandKind = iota + 1 // first: nothing is to be done yet
	cmdFiles                         // before cmdLaunch: comes with descriptors
	cmdLaunch                        // once
	cmdSignal
	cmdStop
	cmdKill
	cmdAsk // whether the keeper lives
)

// command goes from agent to keeper.
type command struct {
	Kind   commandKind
	Launch launch        // cmdLaunch
	Signal int           // cmdSignal
	Ranks  []int         // cmdSignal; empty: all
	Grace  time.Duration // cmdStop
}

type launch struct {
	Job        string
	Generation uint32
	AbortGrace time.Duration
	Heartbeat  time.Duration // of the agent
	Silence    time.Duration // as in Spec
	Files      int           // descriptors that were sent before
	Ranks      []wireRank
}

// wireRank is a RankSpec whose files are places among the descriptors that were sent and, once the keeper has
// them, their numbers there.
type wireRank struct {
	Rank           int
	Argv, Env      []string
	Dir            string
	Stdin          int // -1: /dev/null
	Stdout, Stderr int
	Readers        []int // other ends of Stdout and Stderr: the keeper reads them when the agent no longer does
	Files          []int
	CPUs           []int
}

type reportKind uint8

const (
	repReady reportKind = iota + 1 // first: waits for its ranks
	repStarted
	repExited
	repDone  // nothing is left, except Left
	repAlive // to cmdAsk
)

// report goes from keeper to agent.
type report struct {
	Kind       reportKind
	Rank, PID  int
	UnixNano   int64 // repStarted
	Code       int   // repExited: this and the following
	Signal     int
	CoreDumped bool
	ExecError  string
	KilledByUs bool
	Left       []Process // repDone: could not be killed
}
