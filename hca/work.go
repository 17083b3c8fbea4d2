package hca

// SGE is one entry of a scatter/gather list, laid out as struct ibv_sge
// (infiniband/verbs.h), so that a backend can pass lists by address.
type SGE struct {
	Addr   uint64 `json:"addr"`
	Length uint32 `json:"length"` // bytes
	LKey   uint32 `json:"lkey"`
}

// SendFlags are the flags of a send (enum ibv_send_flags).
type SendFlags uint8

// Send flags.
const (
	SendSignaled  SendFlags = 1 << iota // complete also on success
	SendSolicited                       // set the solicited event bit
	// SendIPCsum makes the device fill in the checksums of the IPv4 header and of TCP or UDP
	// (IBV_SEND_IP_CSUM). The message begins with EncapLen bytes, followed by IPv4 or IPv6.
	// The device ignores the contents of the checksum fields, and does not change the memory
	// of the send. In fragments, behind an IPv6 routing header and in protocols other than TCP
	// and UDP, it fills in only the checksum of the IPv4 header. It sends a message that is not
	// IP unchanged. Without DeviceAttr.IPCsum, the send is refused with ErrInvalid.
	SendIPCsum
)

// SendWR is a UD send (struct ibv_send_wr, opcode IBV_WR_SEND, or IBV_WR_TSO if LSO.MSS is
// not 0).
type SendWR struct {
	ID     uint64 // returned in the completion
	SGList []SGE
	UD     UDDest
	Flags  SendFlags
	LSO    LSO
}

// EncapLen is the length in bytes of the encapsulation header that precedes the IP header in
// messages with checksum or large send offload (RFC 4391, section 6).
const EncapLen = 4

// MaxLSOHeader bounds LSO.Header in bytes. EncapLen and the longest headers of IPv4 and TCP
// (60 bytes each) fit, and 152 bytes of IPv6 extension headers.
const MaxLSOHeader = 256

// MaxLSOSegments bounds the segments of a large send. Each has at least 32 bytes if they have 64 KB
// in total. The shortest segments of Linux's TCP have 36: its least MSS of 48 (the sysctl
// tcp_min_snd_mss) less the option for timestamps. Without a bound, a local process could have one
// frame cut into 65,000 segments.
const MaxLSOSegments = 1 << 11

// LSO makes a send a large send (struct ibv_send_wr, member tso: hdr, hdr_sz, mss; in the
// kernel struct ib_ud_wr with IB_WR_LSO, as IPoIB posts it). The device cuts the payload,
// which SGList describes, into segments, and sends each as a message of its own: the header,
// then the payload of the segment. A large send is one request with one completion.
//
// Large sends require DeviceAttr.MaxTSO. A send is refused with ErrInvalid if MaxTSO is 0 or
// less than the length of the payload, if MSS is negative, if there are more segments than
// MaxLSOSegments, or if the header is longer than MaxLSOHeader, describes a fragment, SYN or RST,
// or is not one of the headers below. If
// Header and MSS together are longer than GIDEntry.MaxPayload, the send fails like any send
// that is too long.
//
// A device with DeviceAttr.TSOEntries needs an entry of the send queue for each segment. It refuses
// a send with ErrQueueFull while there is no room for all segments, even if the queue has room for
// other sends, and with ErrInvalid if there are more segments than QPSpec.SendWRs. No segment of a
// refused send is sent. If a segment fails, or the queue is flushed, the send completes once
// with that status; earlier segments may have been sent.
type LSO struct {
	// Header consists of EncapLen bytes, an IPv4 or IPv6 header, and a TCP header, or a UDP
	// header if DeviceAttr.USO is set. Hop-by-hop options, destination options and routing
	// headers may follow the IPv6 header. In each segment the device sets the lengths, the IPv4
	// identification (incremented for each segment), the TCP sequence number, and the
	// checksums. It keeps CWR only in the first segment, and FIN and PSH only in the last one.
	// The device ignores lengths and checksums in Header, except that behind a routing header
	// the checksum field of TCP or UDP must hold the sum of the pseudo-header for the whole
	// payload. PostSend copies Header, which need not be registered memory.
	Header []byte
	// MSS is the length in bytes of the payload of each segment except the last. 0 means that
	// the send is not a large send.
	MSS int
}

// UDDest is the destination of a UD send (struct ibv_send_wr, member wr.ud).
type UDDest struct {
	AH   AH
	QPN  QPN
	QKey QKey // see QKeyControlled
}

// RecvWR is a receive (struct ibv_recv_wr). The first GRHLen bytes of its list
// receive the GRH; the payload follows.
type RecvWR struct {
	ID     uint64
	SGList []SGE
}

// WC is a work completion (struct ibv_wc). If Status is not WCSuccess, only ID,
// Status, VendorErr and QPN are valid.
type WC struct {
	ID        uint64
	Status    WCStatus
	Opcode    WCOpcode
	Flags     WCFlags
	VendorErr uint32
	ByteLen   uint32 // bytes received, GRHLen included
	QPN       QPN    // the local queue pair
	SrcQPN    QPN    // receive: the sender's queue pair
	PKeyIndex uint16
	SLID      uint16 // InfiniBand only
	SL        uint8
	Network   NetworkType // receive: kind of the header in the GRH area, if the backend knows it
	LRO       LRO         // receive: what was joined in it
}

// LRO describes a large receive: several messages of one sender, the segments of one TCP or
// UDP flow, that the device has joined in one receive (in mlx5, the field lro_num_seg of a
// completion). It needs QPSpec.LRO. The receive holds the GRH of the first message, then the
// message that they are segments of: the encapsulation header, the headers of the first
// segment, and the payloads of all. Cutting it at MSS yields exactly those segments, except
// for the IP identification of datagrams with DF; package join has the rules. The lengths in
// the headers and the checksum of IPv4 are those of the whole. The checksums of the segments
// were correct, as WCFlagIPCsumOK states; the checksum field of TCP or UDP holds only the sum
// of the pseudo-header. A device does not delay a message to wait for the next one.
type LRO struct {
	Segments int // 0: the receive holds one message, as it was sent
	MSS      int // bytes of payload of each segment except the last
}

// NetworkType is the kind of header in the GRH area of a receive (enum
// rdma_network_type of rdma/ib_verbs.h; libibverbs does not report it).
type NetworkType uint8

// Network types.
const (
	NetworkUnknown NetworkType = iota // ParseGRH decides by the header itself
	NetworkIPv4
	NetworkIPv6 // or a GRH, which has the same layout
)

// WCOpcode is the operation that completed.
type WCOpcode uint8

// Completion opcodes of UD (enum ibv_wc_opcode).
const (
	WCSend WCOpcode = iota
	WCRecv
)

// WCFlags are the flags of a completion.
type WCFlags uint8

// Completion flags (enum ibv_wc_flags).
const (
	WCFlagGRH WCFlags = 1 << iota // the first GRHLen bytes are a GRH
	// WCFlagIPCsumOK means that the device verified the checksums of the IPv4 header and of
	// TCP or UDP in the message (IBV_WC_IP_CSUM_OK). Without the flag they may be correct or
	// not: a device with IPCsum need not verify every message.
	WCFlagIPCsumOK
)

// WCStatus is a completion status.
type WCStatus uint8

// Completion statuses (enum ibv_wc_status, same values).
const (
	WCSuccess WCStatus = iota
	WCLocLenErr
	WCLocQPOpErr
	WCLocEECOpErr
	WCLocProtErr
	WCWRFlushErr
	WCMWBindErr
	WCBadRespErr
	WCLocAccessErr
	WCRemInvReqErr
	WCRemAccessErr
	WCRemOpErr
	WCRetryExcErr
	WCRNRRetryExcErr
	WCLocRDDViolErr
	WCRemInvRDReqErr
	WCRemAbortErr
	WCInvEECNErr
	WCInvEECStateErr
	WCFatalErr
	WCRespTimeoutErr
	WCGeneralErr
	WCTMErr
	WCTMRndvIncomplete
	// NumWCStatus is the number of statuses, for tables.
	NumWCStatus
)

var wcStatusNames = [NumWCStatus]string{
	"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
	"MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR",
	"RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR",
	"INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR",
	"TM_RNDV_INCOMPLETE",
}

func (s WCStatus) String() string { return nameOf(wcStatusNames[:], int(s)) }
