package ipoib

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// EtherTypeEcho is the protocol of echo messages, by which `ipoibd ping` measures the path
// below IP: a peer returns a request to its sender. The value is the second EtherType for local
// experiments (IEEE 802 section 9.2.4, 0x88b6 in linux/if_ether.h), so an interface that is not
// ipoibd's drops it. IPoIB carries no frame of this protocol for the host.
const EtherTypeEcho EtherType = 0x88b6

// An echo message consists of the IPoIB header and
//
//	byte 0     version, 1
//	byte 1     1 request, 2 reply
//	byte 2-3   zero; ignored
//	byte 4-11  ID, which the sender of the request chooses
//	byte 12-   padding up to the size that is tested
const (
	// MinEcho is the length of the shortest echo, without IPoIB header, in bytes.
	MinEcho     = 12
	echoVersion = 1
	echoRequest = 1
	echoReply   = 2
)

// Echo is an echo message without its padding.
type Echo struct {
	Reply bool
	ID    uint64
}

// errEcho is allocated once, because it may be returned for every message of a flood.
var errEcho = fmt.Errorf("parse echo: %w", ErrTruncated)

// errEchoKind reports an unknown version or kind.
var errEchoKind = errors.New("parse echo: unknown version or kind")

// ParseEcho parses the body of a message of type EtherTypeEcho. Errors: ErrTruncated, or one
// for a version or kind that is not known.
func ParseEcho(body []byte) (Echo, error) {
	switch {
	case len(body) < MinEcho:
		return Echo{}, errEcho
	case body[0] != echoVersion || body[1] != echoRequest && body[1] != echoReply:
		return Echo{}, errEchoKind
	}
	return Echo{Reply: body[1] == echoReply, ID: binary.BigEndian.Uint64(body[4:])}, nil
}

// Message returns the message, with a header and padding, in fresh memory. Without the header
// it has size bytes; size must be at least MinEcho.
func (e Echo) Message(size int) []byte {
	msg := make([]byte, HeaderLen+size)
	PutHeader(msg, EtherTypeEcho)
	body := msg[HeaderLen:]
	body[0], body[1] = echoVersion, echoRequest
	if e.Reply {
		body[1] = echoReply
	}
	binary.BigEndian.PutUint64(body[4:], e.ID)
	return msg
}
