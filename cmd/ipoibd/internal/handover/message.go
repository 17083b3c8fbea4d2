package handover

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/kernel/capsule"
)

// Version of the protocol. A giver refuses any other. Parts, and fields of messages and parts, may be added and removed
// without a change of the version (package capsule).
const Version = 2

// Bounds of what a process accepts from the other one.
const (
	// maxMessage is in bytes. It suffices for 14 interfaces whose tables are full of peers in use, and for
	// hundreds of interfaces that have only heard of their peers.
	maxMessage = 64 << 20
	// maxObjects bounds the JSON objects of a message: twice those of 14 such interfaces. An object takes up to 100
	// times as much memory as its text.
	maxObjects = 1 << 20
	// maxFDs bounds the descriptors of an offer: 64 interfaces with 8 queues, and their devices.
	maxFDs = 1024
	// fdsAtOnce is less than SCM_MAX_FD (253), the bound of the kernel for one message.
	fdsAtOnce = 250
)

// message is what the two sides send each other. Only the fields of its type are set.
type message struct {
	Type    string         `json:"type"`
	Version int            `json:"version,omitempty"` // ask
	Parts   []capsule.Part `json:"parts,omitempty"`   // offer
	FDs     int            `json:"fds,omitempty"`     // offer
	Reason  string         `json:"reason,omitempty"`  // withdrawn
}

// conn sends and receives messages.
type conn struct{ *net.UnixConn }

func (c conn) send(m message, fds []int) error {
	text, err := m.encode(len(fds))
	if err != nil {
		return err
	}
	if _, err := c.Write(text); err != nil {
		return err
	}
	for len(fds) > 0 {
		some := fds[:min(len(fds), fdsAtOnce)]
		fds = fds[len(some):]
		if _, _, err := c.WriteMsgUnix([]byte{0}, unix.UnixRights(some...), nil); err != nil {
			return err
		}
	}
	return nil
}

// sendNow sends a short message, or returns EAGAIN if there is no room for it.
func (c conn) sendNow(m message) error {
	text, err := m.encode(0)
	if err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	n := 0
	cerr := raw.Control(func(fd uintptr) {
		n, err = unix.SendmsgN(int(fd), text, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	if err = errors.Join(cerr, err); err == nil && n < len(text) {
		_, err = c.Write(text[n:])
	}
	return err
}

// encode returns a message that n descriptors follow.
func (m message) encode(n int) ([]byte, error) {
	m.FDs = n
	body, err := json.Marshal(m)
	if err == nil && (len(body) > maxMessage || n > maxFDs) {
		err = fmt.Errorf("the %s has %d bytes and %d descriptors; the limits are %d and %d",
			m.Type, len(body), n, maxMessage, maxFDs)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...), err
}

// receive returns the next message with its descriptors, which the caller owns.
func (c conn) receive() (m message, fds []int, err error) {
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return m, nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return m, nil, fmt.Errorf("a message of %d bytes; the limit is %d", n, maxMessage)
	}
	// The memory grows with what arrives, not with what is announced.
	var body bytes.Buffer
	if _, err := io.CopyN(&body, c, int64(n)); err != nil {
		return m, nil, err
	}
	if n := bytes.Count(body.Bytes(), []byte("{")); n > maxObjects {
		return m, nil, fmt.Errorf("a message of %d objects; the limit is %d", n, maxObjects)
	}
	if err := json.Unmarshal(body.Bytes(), &m); err != nil {
		return m, nil, err
	}
	if m.FDs < 0 || m.FDs > maxFDs {
		return m, nil, fmt.Errorf("an offer with %d descriptors; the limit is %d", m.FDs, maxFDs)
	}
	for len(fds) < m.FDs {
		some, err := c.receiveFDs()
		if fds = append(fds, some...); err == nil && len(fds) > m.FDs {
			err = fmt.Errorf("received %d descriptors, but %d were announced", len(fds), m.FDs)
		}
		if err != nil {
			kernel.CloseAll(fds)
			return m, nil, err
		}
	}
	return m, fds, nil
}

// receiveFDs receives the descriptors that come with one byte. The Go runtime marks them close-on-exec.
func (c conn) receiveFDs() (fds []int, err error) {
	control := make([]byte, unix.CmsgSpace(4*fdsAtOnce))
	var one [1]byte
	n, size, flags, _, err := c.ReadMsgUnix(one[:], control)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:size])
	for i := range messages {
		some, rightsErr := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, some...), errors.Join(err, rightsErr)
	}
	if err == nil && (n != 1 || len(fds) == 0 || flags&unix.MSG_CTRUNC != 0) {
		err = errors.New("descriptors are missing; the limit of open files may be too low")
	}
	return fds, err
}

// within sets the deadline of what follows; 0: none.
func (c conn) within(limit time.Duration) error {
	if limit == 0 {
		return c.SetDeadline(time.Time{})
	}
	return c.SetDeadline(time.Now().Add(limit))
}

// Peer returns the process at the other end. It returns an error unless both processes belong to the
// same user.
func Peer(c *net.UnixConn) (pid int, err error) {
	peer, err := kernel.Peer(c)
	if err != nil {
		return 0, err
	}
	if int(peer.Uid) != os.Geteuid() {
		return int(peer.Pid), fmt.Errorf("the other process belongs to user %d, this one to user %d; only a daemon of "+
			"the same user can take over", peer.Uid, os.Geteuid())
	}
	return int(peer.Pid), nil
}

// eventOf turns a received message, or the error of receiving one, into an event.
func eventOf(m message, err error) event {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return late
	case err != nil:
		return broken
	}
	switch e := event(m.Type); e {
	case gotOffer, gotTaken, gotYours, gotWithdraw:
		return e
	default:
		return broken
	}
}
