// Package ibwire describes the wire of a test's InfiniBand subnet, and contains the
// kernel module that attaches a guest to it.
//
// # The HCA
//
// ibwire.c is a kernel module that makes an InfiniBand HCA of each netdev that its
// parameters name. rdmavt, which Debian's kernels contain for two HCAs of hardware,
// implements the verbs; the module only moves packets. Because it uses the driver ID of
// one of those, Debian's libibverbs drives it without changes. [Source] holds its source
// and Kbuild file, which package kernel compiles for a guest.
//
// An HCA has one port with one GID, and UD queue pairs besides QP0 and QP1. Its LID,
// partitions and state come from the switch at the other end of the netdev, so it has
// no subnet management agent. The port is down while its netdev is, and the removal of
// the netdev removes the HCA.
//
// # The wire
//
// Each frame is an Ethernet frame between an HCA and the switch, whose addresses mean
// nothing. There are two kinds, by EtherType:
//
//	0x88b5  LRH 8 | GRH 40, if present | BTH 12 | DETH 8 | payload | pad 0-3 | zero 4
//	0x88b6  prefix 8 | LID 2 | SM LID 2 | SM SL 1 | LMC 1 | state 1 | MTU 1 | events 4 | P_Key 2 (16 times)
//
// The first carries an InfiniBand packet ([Packet]). Four zero bytes stand for its ICRC,
// because Ethernet protects the frame. The second, a control frame ([Control]), sets the attributes of
// the port and raises events. An HCA whose netdev has come up sends an empty control
// frame each half second until it receives one.
//
// A control frame is applied as a whole, before its events are raised, or ignored if a field is out of range.
//
// # What it does not show
//
// The wire has no virtual lanes, credits, rates or latency of its own, and the HCA has no connected
// queue pairs, no offloads, and no firmware that fails.
package ibwire
