// Package session carries the control traffic of one job: between the head and the agents (one mutually
// authenticated gRPC stream per agent), and between an agent and the ranks of its node (gRPC and file
// descriptors over inherited Unix sockets).
//
//	head.go         the parent's end: admits agents, detects their loss, runs fences and barriers
//	agent.go        the agent's end of that stream
//	rankserver.go   the agent's end towards its ranks
//	rank.go         the rank's end: endpoint data, barriers, reports, abort, shared files
//
// Everybody who holds the job's secret is a member and trusts the others; nobody else gets past the
// TLS handshake. A stream belongs to one (job, generation, incarnation), which its hello names.
package session

import "time"

// ProtocolVersion is the version of the messages this build speaks. Members of a job must agree on it.
const ProtocolVersion = 1

const (
	// MaxChunk is the most bytes of endpoint data in one message.
	MaxChunk = 256 << 10
	// MaxOutput is the most bytes of a rank's output in one message; Send splits what is longer.
	MaxOutput = 256 << 10
	// MaxUp is the largest message from an agent to its parent.
	MaxUp = 4 << 20
	// MaxDown is the largest message from a parent to an agent; a Start carries the environment of
	// every rank of the node.
	MaxDown = 64 << 20
	// MaxRankPut is the most bytes of endpoint data one rank may put between two fences.
	MaxRankPut = 16 << 20
)

const (
	// DefaultHeartbeat is how often both ends of a stream say that they are alive.
	DefaultHeartbeat = 500 * time.Millisecond
	// DefaultSilence is how long the head waits for an agent that says nothing. An agent waits
	// half as long again, so that of two cut-off sides the head's is the first to speak.
	DefaultSilence = 3 * time.Second

	// streamWindow bounds the bytes in flight on a stream, and so how far a message can be behind
	// output that nobody reads.
	streamWindow = 1 << 20
)
