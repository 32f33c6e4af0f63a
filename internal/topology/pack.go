package topology

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxRecord bounds a record that is unpacked: the largest known machine needs a hundredth of it.
const maxRecord = 64 << 20

// Pack writes a node's record for another mkrun of the same build.
func (n *Node) Pack() ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode(n); err != nil {
		return nil, fmt.Errorf("encoding this node's record: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("packing this node's record: %w", err)
	}
	return b.Bytes(), nil
}

// Unpack reads records that Pack wrote and calls their nodes by the given names, told apart where they are the same.
func Unpack(names []string, packed [][]byte) ([]*Node, error) {
	records := make([][]byte, len(packed))
	for i, p := range packed {
		var err error
		if records[i], err = unpackRecord(p); err != nil {
			return nil, fmt.Errorf("unpacking the record of %s: %w", names[i], err)
		}
	}
	nodes, err := decodeNodes(names, records)
	if err != nil {
		return nil, err
	}
	for i, n := range nodes {
		n.Host, n.Origin.File = names[i], ""
	}
	NameApart(nodes)
	return nodes, nil
}

func unpackRecord(packed []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(z, maxRecord+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRecord {
		return nil, errors.New("it is too long")
	}
	return data, nil
}
