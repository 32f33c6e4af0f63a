// Package rendezvous brings the nodes of a job together: it numbers the ranks once every node said
// hello (Assembly), and keeps a gossip pool of the nodes as a second opinion on who is alive (Gossip).
//
// Gossip is never waited for: the head starts a job when it has counted the hellos on its streams.
package rendezvous
