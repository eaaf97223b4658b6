//! The kernel's numbers for nftables: `linux/netfilter/nf_tables.h` and `nfnetlink.h`.

/// Messages of nftables; the subsystem's number is in the upper byte.
pub mod msg {
    pub const BATCH_BEGIN: u16 = 0x10;
    pub const BATCH_END: u16 = 0x11;

    pub const NEWTABLE: u16 = 0xa00;
    pub const GETTABLE: u16 = 0xa01;
    pub const DELTABLE: u16 = 0xa02;
    pub const NEWCHAIN: u16 = 0xa03;
    pub const GETCHAIN: u16 = 0xa04;
    pub const DELCHAIN: u16 = 0xa05;
    pub const NEWRULE: u16 = 0xa06;
    pub const GETRULE: u16 = 0xa07;
    pub const DELRULE: u16 = 0xa08;
    pub const NEWSET: u16 = 0xa09;
    pub const GETSET: u16 = 0xa0a;
    pub const DELSET: u16 = 0xa0b;
    pub const NEWSETELEM: u16 = 0xa0c;
    pub const GETSETELEM: u16 = 0xa0d;
    pub const DELSETELEM: u16 = 0xa0e;
    pub const NEWGEN: u16 = 0xa0f;
    pub const GETGEN: u16 = 0xa10;
}

/// The multicast group that receives every change.
pub const GROUP_NFTABLES: u32 = 7;
/// In the header of a batch: whose batch it is.
pub const SUBSYSTEM: u16 = 10;
pub const BATCH_GENID: u16 = 1;
pub const LIST_ELEM: u16 = 1;

pub mod table {
    pub const NAME: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const HANDLE: u16 = 4;
    pub const USERDATA: u16 = 6;
}

pub mod chain {
    pub const TABLE: u16 = 1;
    pub const HANDLE: u16 = 2;
    pub const NAME: u16 = 3;
    pub const HOOK: u16 = 4;
    pub const POLICY: u16 = 5;
    pub const TYPE: u16 = 7;
    pub const USERDATA: u16 = 12;

    pub const HOOK_NUM: u16 = 1;
    pub const HOOK_PRIORITY: u16 = 2;
}

pub mod rule {
    pub const TABLE: u16 = 1;
    pub const CHAIN: u16 = 2;
    pub const HANDLE: u16 = 3;
    pub const EXPRESSIONS: u16 = 4;
    pub const COMPAT: u16 = 5;
    pub const POSITION: u16 = 6;
    pub const USERDATA: u16 = 7;

    pub const COMPAT_PROTOCOL: u16 = 1;
    pub const COMPAT_FLAGS: u16 = 2;
}

pub mod set {
    pub const TABLE: u16 = 1;
    pub const NAME: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const KEY_TYPE: u16 = 4;
    pub const KEY_LEN: u16 = 5;
    pub const DATA_TYPE: u16 = 6;
    pub const DATA_LEN: u16 = 7;
    pub const DESC: u16 = 9;
    pub const ID: u16 = 10;
    pub const TIMEOUT: u16 = 11;
    pub const USERDATA: u16 = 13;
    pub const HANDLE: u16 = 16;
    /// Since Linux 6.16.
    pub const COUNT: u16 = 20;

    pub const DESC_SIZE: u16 = 1;
    pub const DESC_CONCAT: u16 = 2;
    pub const FIELD_LEN: u16 = 1;

    pub const F_ANONYMOUS: u32 = 0x1;
    pub const F_INTERVAL: u32 = 0x4;
    pub const F_MAP: u32 = 0x8;
    pub const F_TIMEOUT: u32 = 0x10;
    pub const F_EVAL: u32 = 0x20;
    pub const F_CONCAT: u32 = 0x80;

    pub const TYPE_VERDICT: u32 = 0xffff_ff00;
}

pub mod elem {
    pub const LIST_TABLE: u16 = 1;
    pub const LIST_SET: u16 = 2;
    pub const LIST_ELEMENTS: u16 = 3;

    pub const KEY: u16 = 1;
    pub const DATA: u16 = 2;
    pub const FLAGS: u16 = 3;
    pub const TIMEOUT: u16 = 4;
    pub const EXPIRATION: u16 = 5;
    pub const USERDATA: u16 = 6;
    pub const KEY_END: u16 = 10;

    pub const F_INTERVAL_END: u32 = 1;
    pub const F_CATCHALL: u32 = 2;
}

pub mod data {
    pub const VALUE: u16 = 1;
    pub const VERDICT: u16 = 2;
    pub const VERDICT_CODE: u16 = 1;
    pub const VERDICT_CHAIN: u16 = 2;
}

pub mod generation {
    pub const ID: u16 = 1;
    pub const PROC_PID: u16 = 2;
    pub const PROC_NAME: u16 = 3;
}

/// Attributes of expressions, each numbered from 1.
pub mod expr {
    pub const NAME: u16 = 1;
    pub const DATA: u16 = 2;

    pub const IMMEDIATE_DREG: u16 = 1;
    pub const IMMEDIATE_DATA: u16 = 2;

    pub const BITWISE_SREG: u16 = 1;
    pub const BITWISE_DREG: u16 = 2;
    pub const BITWISE_LEN: u16 = 3;
    pub const BITWISE_MASK: u16 = 4;
    pub const BITWISE_XOR: u16 = 5;
    pub const BITWISE_OP: u16 = 6;

    pub const BYTEORDER_LEN: u16 = 4;
    pub const BYTEORDER_SIZE: u16 = 5;

    pub const CMP_SREG: u16 = 1;
    pub const CMP_OP: u16 = 2;
    pub const CMP_DATA: u16 = 3;

    pub const LOOKUP_SET: u16 = 1;
    pub const LOOKUP_SREG: u16 = 2;
    pub const LOOKUP_DREG: u16 = 3;
    pub const LOOKUP_FLAGS: u16 = 5;
    pub const LOOKUP_F_INV: u32 = 1;

    pub const DYNSET_SET_NAME: u16 = 1;
    pub const DYNSET_OP: u16 = 3;
    pub const DYNSET_SREG_KEY: u16 = 4;
    pub const DYNSET_SREG_DATA: u16 = 5;
    pub const DYNSET_TIMEOUT: u16 = 6;
    pub const DYNSET_EXPR: u16 = 7;
    pub const DYNSET_FLAGS: u16 = 9;
    pub const DYNSET_EXPRESSIONS: u16 = 10;

    pub const PAYLOAD_DREG: u16 = 1;
    pub const PAYLOAD_BASE: u16 = 2;
    pub const PAYLOAD_OFFSET: u16 = 3;
    pub const PAYLOAD_LEN: u16 = 4;

    pub const META_DREG: u16 = 1;
    pub const META_KEY: u16 = 2;
    pub const META_SREG: u16 = 3;

    pub const CT_DREG: u16 = 1;
    pub const CT_KEY: u16 = 2;
    pub const CT_DIRECTION: u16 = 3;
    pub const CT_SREG: u16 = 4;

    pub const HASH_SREG: u16 = 1;
    pub const HASH_DREG: u16 = 2;
    pub const HASH_LEN: u16 = 3;
    pub const HASH_MODULUS: u16 = 4;
    pub const HASH_SEED: u16 = 5;
    pub const HASH_OFFSET: u16 = 6;
    pub const HASH_TYPE: u16 = 7;

    pub const NUMGEN_DREG: u16 = 1;
    pub const NUMGEN_MODULUS: u16 = 2;
    pub const NUMGEN_TYPE: u16 = 3;
    pub const NUMGEN_OFFSET: u16 = 4;

    pub const REJECT_TYPE: u16 = 1;
    pub const REJECT_CODE: u16 = 2;

    pub const NAT_TYPE: u16 = 1;
    pub const NAT_FAMILY: u16 = 2;
    pub const NAT_ADDR_MIN: u16 = 3;
    pub const NAT_ADDR_MAX: u16 = 4;
    pub const NAT_PROTO_MIN: u16 = 5;
    pub const NAT_PROTO_MAX: u16 = 6;
    pub const NAT_FLAGS: u16 = 7;

    pub const REDIR_PROTO_MIN: u16 = 1;
    pub const REDIR_PROTO_MAX: u16 = 2;
    pub const REDIR_FLAGS: u16 = 3;

    pub const MASQ_FLAGS: u16 = 1;
    pub const MASQ_PROTO_MIN: u16 = 2;

    pub const FIB_DREG: u16 = 1;
    pub const FIB_RESULT: u16 = 2;
    pub const FIB_FLAGS: u16 = 3;

    /// Of matches and of targets.
    pub const EXTENSION_NAME: u16 = 1;
    pub const EXTENSION_REVISION: u16 = 2;
    pub const EXTENSION_INFO: u16 = 3;

    pub const COUNTER_BYTES: u16 = 1;
    pub const COUNTER_PACKETS: u16 = 2;
}

/// Comments for other readers of the rule set, as the `nft` program writes and reads them. The
/// kernel only keeps them.
pub mod user {
    /// On tables, chains, rules and elements.
    pub const COMMENT: u8 = 0;

    pub const SET_KEY_BYTE_ORDER: u8 = 0;
    pub const SET_DATA_BYTE_ORDER: u8 = 1;
    pub const SET_KEY_TYPEOF: u8 = 3;
    pub const SET_DATA_TYPEOF: u8 = 4;
    pub const SET_COMMENT: u8 = 7;

    pub const TYPEOF_EXPR: u8 = 0;
    pub const TYPEOF_DATA: u8 = 1;

    /// Longest that the kernel keeps.
    pub const LONGEST: usize = 256;
}
