package cpu

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A connection begins with a handshake in which both sides prove that they know the key that the
// receiver drew for this one sender and gave it through the session; the key itself does not travel.
//
//	sender   -> hello:  magic, sender's rank, sender's nonce
//	receiver -> nonce
//	sender   -> proof of the sender
//	receiver -> proof of the receiver
const (
	helloMagic = 0x6d6b72756e6c6b31 // "mkrunlk1"
	nonceSize  = 32
	helloSize  = 8 + 4 + nonceSize
)

type linkKey [32]byte

var errHandshake = errors.New("handshake refused")

func proof(key *linkKey, side string, rank uint32, sender, receiver []byte) []byte {
	m := hmac.New(sha256.New, key[:])
	var r [4]byte
	binary.LittleEndian.PutUint32(r[:], rank)
	m.Write([]byte(side))
	m.Write(r[:])
	m.Write(sender)
	m.Write(receiver)
	return m.Sum(nil)
}

// greet is the sender's side.
func greet(conn io.ReadWriter, rank int, key *linkKey) error {
	var hello [helloSize]byte
	binary.LittleEndian.PutUint64(hello[0:], helloMagic)
	binary.LittleEndian.PutUint32(hello[8:], uint32(rank))
	mine := hello[12:]
	_, _ = rand.Read(mine) // never fails
	if _, err := conn.Write(hello[:]); err != nil {
		return err
	}
	var theirs [nonceSize]byte
	if _, err := io.ReadFull(conn, theirs[:]); err != nil {
		return fmt.Errorf("waiting for the peer's answer: %w", err)
	}
	if _, err := conn.Write(proof(key, "sender", uint32(rank), mine, theirs[:])); err != nil {
		return err
	}
	var answer [sha256.Size]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return fmt.Errorf("waiting for the peer's proof: %w", err)
	}
	if !hmac.Equal(answer[:], proof(key, "receiver", uint32(rank), mine, theirs[:])) {
		return errHandshake
	}
	return nil
}

// receive is the receiver's side. keys gives the key of an expected sender, nil for anyone else.
// Until the sender has proved itself nothing is allocated that grows with what it sent.
func receive(conn io.ReadWriter, keys func(rank int) *linkKey) (rank int, err error) {
	var hello [helloSize]byte
	if _, err := io.ReadFull(conn, hello[:]); err != nil {
		return 0, err
	}
	if binary.LittleEndian.Uint64(hello[0:]) != helloMagic {
		return 0, errHandshake
	}
	id := binary.LittleEndian.Uint32(hello[8:])
	key := keys(int(id))
	if key == nil {
		return 0, errHandshake
	}
	var mine [nonceSize]byte
	_, _ = rand.Read(mine[:]) // never fails
	if _, err := conn.Write(mine[:]); err != nil {
		return 0, err
	}
	var answer [sha256.Size]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return 0, err
	}
	if !hmac.Equal(answer[:], proof(key, "sender", id, hello[12:], mine[:])) {
		return 0, errHandshake
	}
	_, err = conn.Write(proof(key, "receiver", id, hello[12:], mine[:]))
	return int(id), err
}
