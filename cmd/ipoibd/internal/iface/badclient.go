package iface

import (
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
)

// slowRelease is how long a slow client keeps a device that is about to be reset.
const slowRelease = 2 * time.Second

// Misbehaviour is a fault of an interface as a client of a device reset. It fires once.
type Misbehaviour int32

// Misbehaviours.
const (
	Obliging Misbehaviour = iota // no fault
	Slow                         // releases the device late
	Dead                         // never releases the device
)

// badClient releases sessions; an injected fault makes it do so late or never.
type badClient struct {
	name string       // of the interface
	next atomic.Int32 // Misbehaviour

	at   time.Time       // when to release held; zero: when Run ends
	held *device.Session // withheld; nil: none
}

// Misbehave makes the interface a bad client of the next device reset.
func (f *Iface) Misbehave(how Misbehaviour) { f.fabric.badClient.next.Store(int32(how)) }

func (c *badClient) release(s *device.Session) {
	c.end()
	switch Misbehaviour(c.next.Swap(int32(Obliging))) {
	case Obliging:
		s.Release(c.name)
	case Slow:
		c.held, c.at = s, time.Now().Add(slowRelease)
	case Dead:
		c.held = s
	}
}

// end releases the withheld session at once. Idempotent.
func (c *badClient) end() {
	if c.held != nil {
		c.held.Release(c.name)
	}
	c.held, c.at = nil, time.Time{}
}
