"""Forty shapes of secrets in practice. Each contains ``CORE``, which no text for other readers may show."""

import base64
import json

CORE = "hush4X9"

_LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada" password="{CORE}";'
_KEY = f"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqh\n{CORE}kiG9w0BAQEF\n-----END PRIVATE KEY-----"
_BASIC = base64.b64encode(f"ada:{CORE}".encode()).decode()

SHAPES: dict[str, str] = {
    "a word": CORE,
    "a sentence": f"horse battery {CORE} staple",
    "quotes": f"\"{CORE}'",
    "a backslash": f"\\{CORE}\\",
    "an umlaut": f"ü{CORE}",
    "an emoji": f"{CORE}🙂",
    "a line break": f"{CORE}\n",
    "signs of a URL": f"{CORE}/?&=+%",
    "signs of a regular expression": f"(.*{CORE})+",
    "signs of XML": f"<{CORE}&>",
    "a JAAS text": _LOGIN,
    "a JAAS text with apostrophes": f"ScramLoginModule required username='ada' password='{CORE}';",
    "a JAAS file": f'KafkaClient {{\n  com.example.Login required\n  serviceName="kafka"\n  password="{CORE}";\n}};',
    "a URL": f"https://ada:{CORE}@packages.example/maven",
    "a URL of a database": f"postgresql+psycopg://ada:{CORE}@db:5432/flights",
    "a JDBC URL": f"jdbc:mysql://db/hive?user=ada&password={CORE}",
    "a JDBC URL with semicolons": f"jdbc:sqlserver://db;user=ada;Password={CORE}",
    "a signed URL": f"https://a.blob.core.windows.net/c?sv=2024-01-01&sig={CORE}",
    "a signature": f"sv=2024-01-01&sig={CORE}",
    "a web hook": f"https://hooks.example/services?token={CORE}",
    "a connection string of a store": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={CORE}+/==",
    "a connection string of a bus": f"Endpoint=sb://bus;SharedAccessKeyName=n;SharedAccessKey={CORE}",
    "a connection string of ODBC": f"Driver=SQL;Server=db;UID=ada;PWD={CORE}",
    "a connection string of libpq": f"host=db user=ada password={CORE}",
    "a line of .pgpass": f"db:5432:flights:ada:{CORE}",
    "a user and a password": f"ada:{CORE}",
    "a bearer token": f"Bearer {CORE}",
    "a header": f"Authorization: Bearer {CORE}",
    "a basic header": f"Authorization: Basic {_BASIC}",
    "a cookie": f"session={CORE}; Path=/",
    "a JSON object": json.dumps({"user": "ada", "password": CORE}),
    "a JSON object in another": json.dumps({"login": {"user": "ada", "password": CORE}}),
    "a JSON list": json.dumps([CORE, "more"]),
    "a key of a service account": json.dumps({"type": "service_account", "private_key": _KEY}),
    "a JSON object with a URL": json.dumps({"url": f"https://ada:{CORE}@db/flights", "dsn": f"https://ada:{CORE}@db/flights"}),
    "a private key": _KEY,
    "YAML": f"user: ada\npassword: {CORE}",
    "properties": f"user=ada\nmy.password={CORE}",
    "a Docker login": json.dumps({"auths": {"registry.example": {"auth": _BASIC}}}),
    "a JSON web token": f"eyJhbGciOiJIUzI1NiJ9.{CORE}.c2ln",
}

WHOLE = frozenset(
    {
        *("a sentence", "quotes", "a backslash", "an umlaut", "an emoji", "a line break"),
        *("signs of a URL", "signs of a regular expression", "signs of XML"),
        *("a private key", "a connection string of a store", "a key of a service account", "a JSON web token"),
    }
)
"""The shapes in which ``CORE`` is not a password of its own."""
