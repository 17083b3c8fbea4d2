package mad

import "fmt"

// Method is the method of a MAD (IBA 13.4.5 and 15.2.2).
type Method uint8

// Methods of the SA class. An answer has the bit MethodResponse, and Set is answered by GetResp.
const (
	MethodGet          Method = 0x01
	MethodSet          Method = 0x02
	MethodGetTable     Method = 0x12
	MethodDelete       Method = 0x15
	MethodGetResp      Method = 0x81
	MethodGetTableResp Method = 0x92
	MethodDeleteResp   Method = 0x95

	MethodResponse Method = 0x80
)

// Response returns the method of the answer to m.
func (m Method) Response() Method {
	if m == MethodSet {
		return MethodGetResp
	}
	return m | MethodResponse
}

func (m Method) String() string {
	switch m {
	case MethodGet:
		return "Get"
	case MethodSet:
		return "Set"
	case MethodGetTable:
		return "GetTable"
	case MethodDelete:
		return "Delete"
	case MethodGetResp:
		return "GetResp"
	case MethodGetTableResp:
		return "GetTableResp"
	case MethodDeleteResp:
		return "DeleteResp"
	default:
		return fmt.Sprintf("method 0x%02x", uint8(m))
	}
}

// Attribute is the kind of record in a MAD (IBA 13.4.8 and 15.2.5).
type Attribute uint16

// Attributes.
const (
	AttrClassPortInfo  Attribute = 0x0001
	AttrPathRecord     Attribute = 0x0035
	AttrMCMemberRecord Attribute = 0x0038
)

func (a Attribute) String() string {
	switch a {
	case AttrClassPortInfo:
		return "ClassPortInfo"
	case AttrPathRecord:
		return "PathRecord"
	case AttrMCMemberRecord:
		return "MCMemberRecord"
	}
	return fmt.Sprintf("attribute 0x%04x", uint16(a))
}
