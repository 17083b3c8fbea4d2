package sm

import (
	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

// Reason says why the switch did not forward a packet or a frame.
type Reason string

// The reasons.
const (
	DropFrame    Reason = "frame"     // neither a packet nor a control frame
	DropPacket   Reason = "packet"    // not a UD SEND, or of a wrong length
	DropPortDown Reason = "port_down" // the port on which it arrived, or on which it would leave, is not active
	DropTooLong  Reason = "too_long"  // longer than the MTU of that port
	DropNoRoute  Reason = "no_route"  // the linear table has no port for the LID
	DropNoMember Reason = "no_member" // the group has no member, besides the sender
	DropNoHost   Reason = "no_host"   // the port for the LID has no host, and the packet is not for QP1
	DropFault    Reason = "fault"     // a request to the SA, by SetFaults
	DropQueue    Reason = "queue"     // the host reads too slowly
	DropUnknown  Reason = "unknown"   // an answer to no open request
	DropReturned Reason = "returned"  // a request that ibsim could not deliver
)

// port is what forwarding needs to know about a port of the switch.
type port struct {
	attached bool // to a host of ours
	state    hca.PortState
	mtu      int // in bytes
}

// verdict is where a packet goes.
type verdict struct {
	out   []uint8 // ports of the switch with hosts
	relay bool    // to ibsim
	drop  Reason  // of one that goes nowhere, and of one that some port cannot take
}

// forward decides on a packet that arrives on port in. Ports are indexed by their numbers.
func forward(t *tables, ports []port, in uint8, p *ibwire.Packet) (v verdict) {
	if ports[in].state != hca.PortActive {
		return verdict{drop: DropPortDown}
	}
	if ibwire.IsMulticast(p.DLID) {
		for _, out := range t.multicast(p.DLID).ports() {
			if out != in && int(out) < len(ports) && ports[out].attached {
				v.leave(ports, out, p)
			}
		}
		if v.out == nil && v.drop == "" {
			v.drop = DropNoMember
		}
		return v
	}
	out, ok := t.unicast(p.DLID)
	switch {
	case !ok || int(out) >= len(ports):
		v.drop = DropNoRoute
	case ports[out].attached:
		v.leave(ports, out, p)
	case p.DestQPN == qpGeneral && len(p.Payload) == madLen:
		v.relay = true
	default:
		v.drop = DropNoHost
	}
	return v
}

// leave lets a packet out by a port that has a host.
func (v *verdict) leave(ports []port, out uint8, p *ibwire.Packet) {
	switch {
	case ports[out].state != hca.PortActive:
		v.drop = DropPortDown
	case len(p.Payload) > ports[out].mtu:
		v.drop = DropTooLong
	default:
		v.out = append(v.out, out)
	}
}
