// Package memsubnet turns software HCAs on an in-memory fabric into ports of an InfiniBand
// subnet: a test double of switches, ports and a subnet manager that runs inside
// testing/synctest.
//
// # Theory of operation
//
// A [Subnet] is the switches and the subnet manager. [Subnet.Attach] adds a [Port], and [Port.Open]
// opens its HCA, a [Device]: an [ipoibd/hca/soft.Device] on a netdev of the fabric, and a wrapper
// around each of its objects. Below the wrapper, messages are RoCEv2 datagrams between fixed
// addresses, one for each port (fe80:: with its GUID), and one for each pair of MGID and MLID.
// PostSend chooses the address by the tables of the subnet at that moment. So an address handle
// keeps the LID that it was made with, and leads nowhere once that LID is gone.
//
// What a receiver learns from the routing headers (LRH and GRH) does not fit into a RoCEv2
// datagram. The subnet numbers the different headers that its ports have sent. Traffic class and
// hop limit of the datagram are such a number, which survives in the GRH area of the receive. Poll
// finds the header by its number, completes the work completion, and writes the GRH area.
//
//	message              | goes by | completion          | GRH area
//	unicast without GRH  | DLID    | SLID, SL            | bytes [NoGRH]
//	unicast with a GRH   | DLID    | SLID, SL, WCFlagGRH | the sender's GRH
//	multicast            | MLID    | SLID, SL, WCFlagGRH | the sender's GRH
//
// # What is not forwarded
//
// A send always completes with success, as on a subnet. A message is lost, and counted by a
// [Drop], if a port is not ACTIVE, if no port has the DLID, if the port with the DLID lacks the
// DGID of the GRH, if the sender is not a member of the MLID, if a receiver is not a full member,
// or if the P_Key matches none of the receiving port. The receiving queue pair also compares its
// own P_Key and Q_Key; see the counters of its device. A QP gets the messages of a group only if
// it is attached to exactly this MGID at this MLID. There are no routers: a DGID of another
// subnet is not found. The port of the sender itself is not a receiver for the subnet: its HCA loops
// messages back without it.
//
// # View of a port
//
// The attributes that QueryPort returns are data of the test, which [Port.Change] replaces. They
// take effect at once: the subnet forwards by them. Change raises the events that follow from
// what has changed, and [Port.Emit] any others.
//
//	changed              | event
//	GIDs                 | GID_CHANGE
//	LID, LMC             | LID_CHANGE
//	P_Keys               | PKEY_CHANGE
//	LID or SL of the SM  | SM_CHANGE
//	state                | PORT_ACTIVE or PORT_ERR, to or from ACTIVE; the last event of a change
//
// The events of the software HCA below follow, without those about its port.
//
// # Subnet administrator
//
// The subnet manager is at the LID of [SM], which may be that of a port: it gets only what is for QP1.
// It passes each MAD to an [SA], which the test provides, and sends the answers back. MADs with a wrong
// Q_Key, SL, partition or length do not reach it. [SM].Fate loses and delays MADs. This package
// does not decode them: only [Subnet.Join] and [Subnet.Leave] change the table of memberships.
package memsubnet
