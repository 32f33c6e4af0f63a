package session

// Radix is how many agents report to the head, and to each agent that others report to.
const Radix = 32

// Tree says who reports to whom: the first Radix nodes to the head, the next Radix to node 0, and so on. So the head
// holds few streams in a job of any size, and up to Radix nodes have no agent between them and the head.
type Tree struct {
	Radix int // the package's when 0
	Nodes int
}

func (t Tree) radix() int {
	if t.Radix == 0 {
		return Radix
	}
	return t.Radix
}

// theHead stands for the head among nodes.
const theHead = -1

// Parent is the node that a node reports to; -1 is the head.
func (t Tree) Parent(node int) int { return node/t.radix() - 1 }

// Children are the nodes that report to a node, or to the head (-1): from first to before end.
func (t Tree) Children(node int) (first, end int) {
	first = min((node+1)*t.radix(), t.Nodes)
	return first, min(first+t.radix(), t.Nodes)
}

// toward is the child of a node (or of the head) through which a node is reached; ok is false if none is.
func (t Tree) toward(from, to int) (child int, ok bool) {
	if to < 0 || to >= t.Nodes {
		return 0, false
	}
	for up := t.Parent(to); up >= from; to, up = up, t.Parent(up) {
		if up == from {
			return to, true
		}
		if up == theHead {
			break
		}
	}
	return 0, false
}
