"""Texts that are made to be slow to redact, or to be cut at the wrong place; and pieces of which such texts are put together."""

# Each is repeated to any length. For every rule: what begins it and never ends, what nearly fits, what fits all the time.
HOSTILE = (
    *("a", "1", "4", "A", ":", "::", ".", "@", "+", "-", "[", "\\", "%", " ", "é", "\n"),
    *("4444 ", "4444444444444444 ", "4111 1111 1111 1111 ", "4444-", "1 ", "1.", "(2", "212-", "212-555-1234 ", "+1 ", "+1", "+12345678 "),
    *("sk-", "sk-aaaaaaaaaaaaaaaa-", "sk-ant ", "sk-aaaaaaaaaaaaaaaa ", "gsk_", "hf_a_", "ghp_", "AIza", "ya29.", "github_pat_", "AKIA"),
    *("AKIAIOSFODNN7EXAMPLE ", "AKIAIOSFODNN7EXAMPLE,", "secret_key=", "SECRET_ACCESS_KEY: ", "eyJ", ".eyJ", "eyJaaaaaa.bb ", "eyJaaaaaaaa-eyJ."),
    *(
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY----- ",
        "-----BEGIN PRIVATE KEY----- ! ",
        "-----END PRIVATE KEY-----",
        "-----BEGIN A PRIVATE KEY-----END ",
    ),
    *("a@b.co ", "a@", "a@a.", "@a.a.a.a.a.a.a.", "a%40", "%40a.bc", "a" * 63 + "@a.co ", "a.", "x-"),
    *("CY11 11AA ", "CY11 111A ", "DE11 1111 ", "GT11 ", "AA11", "DE89 3704 0044 0532 0130 00 "),
    *(r"\u0040", r"\u004", r"\\u0061", r"\/", r"a\u0040b.co ", r"sk\u002d", r"\u002b49 1", r"\ud83d"),
    *("1.1.1.1 ", "1.1.1.", "a::b ", "::1 ", "a:", "a: :: ", "2001:db8::1 ", "1:2:3:4:5:6:7:", "[EMAIL] "),
    "DE11 4444 a@b.co ::1 1.1.1.1 sk- eyJ +1 ",
)

KEY = "sk-proj-abcdefghij0123456789ABCDEFGHIJ_-x"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA1c7+9z5Pad7OejecsQ0bu3aumHUQ/kzQ\n" * 40 + "-----END RSA PRIVATE KEY-----"

# What is masked, by its mask.
SECRETS = (
    ("EMAIL", "bob.o'neill+x@mail.example.co.uk"),
    ("EMAIL", "jürgen@münchen.de"),
    ("EMAIL", "bob%40example.com"),
    ("EMAIL", "a@xn--mnchen-3ya.xn--p1ai"),
    ("API_KEY", KEY),
    ("API_KEY", "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789-AA"),
    ("API_KEY", "AIzaSyA1234567890abcdefghijklmnopqrstuvw"),
    ("API_KEY", "ghp_0123456789abcdefghij0123456789abcdef"),
    ("API_KEY", "gho_0123456789abcdefghij0123456789abcdef"),
    ("API_KEY", "ghs_0123456789abcdefghij0123456789abcdef"),
    ("API_KEY", "github_pat_11AAAAAAA0aaaaaaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbbbbb"),
    ("API_KEY", "gsk_abcdefghijklmnopqrstuvwxyz"),
    ("AWS_KEY", "AKIAIOSFODNN7EXAMPLE"),
    ("AWS_KEY", "ASIAIOSFODNN7EXAMPLE"),
    ("CARD", "4111 1111 1111 1111"),
    ("CARD", "4111-1111-1111-1111"),
    ("CARD", "4111\u00a01111\u00a01111\u00a01111"),
    ("CARD", "5555555555554444"),
    ("CARD", "378282246310005"),
    ("CARD", "3782 822463 10005"),
    ("CARD", "30569309025904"),
    ("CARD", "6304000000000000000"),
    ("IBAN", "DE89 3704 0044 0532 0130 00"),
    ("IBAN", "DE89370400440532013000"),
    ("IBAN", "GB29 NWBK 6016 1331 9268 19"),
    ("IBAN", "FR14 2004 1010 0505 0001 3M02 606"),
    ("IBAN", "MT84MALT011000012345MTLCAST001S"),
    ("IBAN", "NO93 8601 1117 947"),
    ("IBAN", "KZ86 125K ZT50 0410 0100"),
    ("IBAN", "MD24 AG00 0225 1000 1310 4168"),
    ("PHONE", "+49 151 23456789"),
    ("PHONE", "+4915123456789"),
    ("PHONE", "+44 (0)20 7946 0958"),
    ("PHONE", "+1-212-555-1234"),
    ("PHONE", "(212) 555-1234"),
    ("PHONE", "212-555-1234"),
    ("PHONE", "1-212-555-1234"),
    ("IP", "10.0.0.1"),
    ("IP", "255.255.255.255"),
    ("IP", "2001:0db8:85a3:0000:0000:8a2e:0370:7334"),
    ("IP", "2001:db8::8a2e:370:7334"),
    ("IP", "fe80::1"),
    ("IP", "::ffff:10.0.0.1"),
    ("IP", "64:ff9b:0:0:0:0:192.0.2.33"),
    ("JWT", JWT),
    ("PRIVATE_KEY", PEM),
    ("PRIVATE_KEY", PEM.replace("\n", "\\n")),
)

# What looks a little like it.
HARMLESS = (
    *("version 1.2.3", "1.2.3.4.5", "v1.2.3.4", "at 12:34:56", "2026-11-30T15:24:11.123Z", "300.1.1.1", "Chrome/120.0.6099.71", "std::vector<int>"),
    *("a::b", "x[1::2]", "dead::beef", "aa:bb:cc:dd:ee:ff", "4111 1111 1111 1112", "0.4111111111111111", "1764516251123", "123e4567-e89b-12d3-a456"),
    *("DE88 3704 0044 0532 0130 00", "XX89 3704 0044 0532 0130 00", "$1,234,567.89", "+1 and +2", "a+1234567890", "030 1234567", "555-1234"),
    *(
        "task-force risk-averse",
        "sk-",
        "sk-learn",
        "hf_transformers_pipeline",
        "pk_constraint_on_users",
        "eyJhbGciOiJIUzI1NiJ9",
        "AKIA",
        "@dataclass",
    ),
    *("@types/node", "user@localhost", "-----BEGIN CERTIFICATE-----", "secret_key = os.environ['X']", "key=value", "Bearer of news", "[EMAIL]"),
    *("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "fn(a, b) + 12", "C:\\Users\\bob", "你好，世界", "👩‍👩‍👧"),
)
