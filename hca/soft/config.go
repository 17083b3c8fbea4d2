package soft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Config is what a device is opened with.
type Config struct {
	Name      string              // of the device
	Transport transport.Transport // the device's own from Open on: Close closes it
	PKeys     []hca.PKey          // the P_Key table; nil: the default key alone

	// GUID is the node's and the port's; zero: made from the underlay's MAC, as
	// rxe does. An underlay without a MAC needs one.
	GUID hca.GUID

	// StandardMTU declares the largest MTU of the standard that the underlay
	// carries in full, which hardware peers need.
	StandardMTU bool

	// Peers is the list that multicast is replicated to; nil: IP multicast. It
	// is called on the data path and must neither block nor allocate; nobody
	// changes a list that it returned. Addresses are IPv4 in the 4-byte form
	// or IPv6 without a zone; the port's own may be among them.
	Peers func() []netip.Addr
	// KnownPeersOnly drops what comes from an address not in Peers.
	KnownPeersOnly bool

	// Rand chooses QP numbers; nil: seeded by the system.
	Rand *rand.Rand
}

func (c *Config) check() error {
	switch {
	case c.Transport == nil:
		return fmt.Errorf("%w: no transport", hca.ErrInvalid)
	case c.KnownPeersOnly && c.Peers == nil:
		return fmt.Errorf("%w: known peers only, but no list of peers", hca.ErrInvalid)
	}
	return nil
}

// withDefaults fills in what was left out.
func (c Config) withDefaults() Config {
	if c.PKeys == nil {
		c.PKeys = []hca.PKey{hca.PKeyDefault}
	}
	if c.Rand == nil {
		c.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return c
}
