package soft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Config configures a device.
type Config struct {
	Name      string              // of the device
	Transport transport.Transport // owned by the device from Open on: Close closes it
	PKeys     []hca.PKey          // the first P_Key table; nil: only the default key

	// More are further transports of the same underlay, which the device owns as well. Each gets
	// a lane, so that the queues of a QP work in parallel. All transports have the same
	// addresses, and each has its own source port. A unicast datagram arrives at one of them,
	// always at the same one for the same addresses and source port. All multicast arrives at
	// Transport, which the device also uses to join groups and to watch the underlay.
	More []transport.Transport

	// GUID is the GUID of node and port; zero: derived from the underlay's MAC, as
	// rxe does. It is required for an underlay without a MAC.
	GUID hca.GUID

	// StandardMTU declares the largest standard MTU that the underlay carries in
	// full, which hardware peers need.
	StandardMTU bool

	// Peers returns the list that multicast is replicated to; nil: IP multicast.
	// It is called on the data path and must neither block nor allocate. A list
	// that it has returned must not change. Addresses are IPv4 in the 4-byte form
	// or IPv6 without a zone; the port's own may be among them.
	Peers func() []netip.Addr
	// KnownPeersOnly drops datagrams from addresses that are not in Peers.
	KnownPeersOnly bool

	// Await are the numbers of QPs that another process has had on these transports, and this
	// one will create (hca.QPSpec.Num). Until all of them have receives, and for a second at
	// most, the device does not receive: messages for them wait in the transports.
	Await []hca.QPN

	// Rand chooses QP numbers; nil: seeded by the system.
	Rand *rand.Rand
}

func (c *Config) check() error {
	switch {
	case c.Transport == nil:
		return fmt.Errorf("%w: a transport is required", hca.ErrInvalid)
	case len(c.More) >= maxQueues:
		return fmt.Errorf("%w: at most %d transports", hca.ErrInvalid, maxQueues)
	case c.KnownPeersOnly && c.Peers == nil:
		return fmt.Errorf("%w: KnownPeersOnly requires Peers", hca.ErrInvalid)
	}
	return nil
}

// withDefaults fills in the defaults.
func (c Config) withDefaults() Config {
	if c.PKeys == nil {
		c.PKeys = []hca.PKey{hca.PKeyDefault}
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return c
}
