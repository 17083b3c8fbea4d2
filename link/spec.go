package link

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// AliasPrefix begins the alias of every interface of ipoibd.
const AliasPrefix = "ipoibd"

// Limits of a specification.
const (
	MinMTU = 68    // RFC 791, 3.2; ETH_MIN_MTU
	MaxMTU = 65521 // the TAP's: 65535 less the Ethernet header (drivers/net/tun.c, MAX_TAP)
)

// DefaultTxQueueLen is the length of a new TAP's queue, in frames. The kernel's default of
// 1000 is less than a TCP window of 6 MB in small segments; frames that do not fit are
// dropped.
const DefaultTxQueueLen = 4096

// DefaultLargeTxQueueLen is the length of the queue while the host sends large frames. Each
// frame holds up to 64 KB of memory that is charged to no socket (tun_net_xmit calls
// skb_orphan), so 4096 of them could hold 256 MB. The value differs from the kernel's default of
// 1000, which an operator may have set on purpose.
const DefaultLargeTxQueueLen = 1024

// Spec is the data of an interface. MAC, MTU and TxQueueLen apply only at its creation: an adopted
// interface keeps the host's settings.
type Spec struct {
	Name string // 1-15 bytes, without '/', ':', '%' and white space
	// Netns is the path of the network namespace in which the interface is; empty: the namespace of this
	// process. The interface is lent to that namespace: it is deleted once the path is gone, or leads
	// to another namespace (see [TAP.Inspect]). Entering the namespace requires CAP_SYS_ADMIN.
	Netns string
	// Namespace is that namespace, if it is open already, since this process may not be allowed to open
	// the path; nil: Open opens it. The caller closes it afterwards.
	Namespace  *os.File
	Existing   bool    // adopt the interface, but do not create it
	MAC        [6]byte // unicast
	MTU        int     // MinMTU-MaxMTU
	TxQueueLen int     // frames; 0: DefaultTxQueueLen
	// LargeTxQueueLen replaces TxQueueLen while SetOffloads has turned segmentation on; 0:
	// DefaultLargeTxQueueLen. It applies to an adopted interface too, unless the host has set
	// a length other than the specification's.
	LargeTxQueueLen int
	// Queues is the number of queues to attach, up to MaxQueues; 0 means 1.
	Queues int
}

// queueLens are the lengths of the queue of frames from the host, with small and with large frames.
type queueLens struct{ small, large int }

func (s Spec) queueLens() queueLens {
	return queueLens{cmp.Or(s.TxQueueLen, DefaultTxQueueLen), cmp.Or(s.LargeTxQueueLen, DefaultLargeTxQueueLen)}
}

// Validate returns the first error found, which wraps ErrSpec.
func (s Spec) Validate() error {
	if err := validName(s.Name); err != nil {
		return err
	}
	switch {
	case s.MAC[0]&1 != 0 || s.MAC == [6]byte{}:
		return fmt.Errorf("%w: MAC % x is not a unicast address", ErrSpec, s.MAC)
	case s.MTU < MinMTU || s.MTU > MaxMTU:
		return fmt.Errorf("%w: MTU %d is not in %d-%d", ErrSpec, s.MTU, MinMTU, MaxMTU)
	case s.Queues < 0 || s.Queues > MaxQueues:
		return fmt.Errorf("%w: %d queues are not in the range 0-%d", ErrSpec, s.Queues, MaxQueues)
	case s.TxQueueLen < 0 || s.LargeTxQueueLen < 0:
		return fmt.Errorf("%w: transmit queue length %d or %d is negative", ErrSpec, s.TxQueueLen, s.LargeTxQueueLen)
	}
	return nil
}

// validName follows dev_valid_name (net/core/dev.c). It also rejects '%', because the kernel
// would interpret the name as a template.
func validName(name string) error {
	bad := name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." ||
		strings.ContainsAny(name, "/:% \t\n\v\f\r\x00")
	if bad {
		return fmt.Errorf("%w: %q is not a valid interface name", ErrSpec, name)
	}
	return nil
}

// MACFor returns the MAC of the interface name on a port and partition. It is always the
// same, and is a locally administered unicast address (IEEE 802, 8.4).
func MACFor(portGUID [8]byte, pkey uint16, name string) [6]byte {
	input := binary.BigEndian.AppendUint16(portGUID[:], pkey)
	sum := sha256.Sum256(append(input, name...))
	mac := [6]byte(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}
