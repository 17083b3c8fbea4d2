package coordinator

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"ipoibd/qprecovery/reset"
)

const (
	// queueLen is how many messages wait for a peer that does not read: each of
	// MaxMembers comes and goes once, and as much again.
	queueLen = 4 * reset.MaxMembers
	// frameTime is how long a peer may take from a frame's first byte to its last,
	// and a newcomer to its first message. Frames are written whole.
	frameTime = 5 * time.Second
	// writeTime is how long what was sent may wait for room in the socket's buffer,
	// counted from the last message.
	writeTime = 5 * time.Second
	// closeTime is how long a connection is kept for what was said before its end.
	closeTime = time.Second
)

var errSlow = errors.New("the peer does not read what is sent to it")

// patience says whether a connection's first message has a deadline.
type patience bool

const (
	patient patience = false // with a host, which may be stopped for a while
	strict  patience = true  // with a stranger
)

// conn carries messages over a stream. The owner sends; a goroutine reads, and
// one writes.
type conn struct {
	id   reset.Conn
	nc   net.Conn
	out  chan []byte
	once sync.Once // closes out
}

// newConn takes over nc and begins to read and write.
func (o *owner) newConn(id reset.Conn, nc net.Conn, p patience) *conn {
	c := &conn{id: id, nc: nc, out: make(chan []byte, queueLen)}
	o.spawn(func() { o.report(broken{id, c.read(o, p)}) })
	o.spawn(func() {
		defer nc.Close() // which ends read
		if err := c.write(); err != nil {
			o.report(broken{id, err})
		}
	})
	return c
}

// send queues a message. It never blocks; [errSlow] when the queue is full.
func (c *conn) send(msg reset.Message) error {
	frame, err := reset.Append(nil, msg)
	if err != nil {
		return err
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(writeTime)) // of a closed connection: the read says so
	select {
	case c.out <- frame:
		return nil
	default:
		return errSlow
	}
}

// finish closes the connection once what was sent is written, at the latest
// after closeTime. Nothing may be sent afterwards.
func (c *conn) finish() {
	_ = c.nc.SetWriteDeadline(time.Now().Add(closeTime)) // as in send
	c.once.Do(func() { close(c.out) })
}

// abort closes the connection at once. Nothing may be sent afterwards.
func (c *conn) abort() {
	c.nc.Close()
	c.once.Do(func() { close(c.out) })
}

// write writes what is queued until the queue is closed.
func (c *conn) write() error {
	for frame := range c.out {
		if _, err := c.nc.Write(frame); err != nil {
			return err
		}
	}
	return nil
}

// read reports messages until the stream ends or is lost, and returns why.
func (c *conn) read(o *owner, p patience) error {
	buf := make([]byte, 0, reset.MaxFrame)
	c.expect(bool(p))
	for {
		n, err := c.nc.Read(buf[len(buf):cap(buf)])
		all := buf[:len(buf)+n]
		rest, bad := c.decode(o, all)
		if err := errors.Join(bad, err); err != nil {
			return err
		}
		if len(buf) == 0 || len(rest) < len(all) { // else it is still the same frame
			c.expect(len(rest) > 0)
		}
		buf = append(buf[:0], rest...)
	}
}

// expect bounds the wait for the rest of a frame, or lifts the bound.
func (c *conn) expect(more bool) {
	var at time.Time
	if more {
		at = time.Now().Add(frameTime)
	}
	_ = c.nc.SetReadDeadline(at) // of a closed connection: the next read says so
}

// decode reports the whole messages of b and returns the rest.
func (c *conn) decode(o *owner, b []byte) ([]byte, error) {
	for {
		msg, n, err := reset.Decode(b)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read a message: %w", err)
		case msg == nil:
			return b, nil
		case !o.report(heard{c.id, msg}):
			return nil, io.EOF
		}
		b = b[n:]
	}
}
